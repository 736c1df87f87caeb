"""A topic joined with a Parquet table: orders from the log, products and prices from files.

    python -m examples.spark_join --url http://127.0.0.1:8080

Writes the table, sends orders, and tells what each category of products has brought in over all orders of the topic.
"""

import argparse
import json
import os
import random
import sys
import tempfile

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from myqueue import MyQueueError, Producer
from spark.config import SparkFailure, load
from spark.session import build

PRODUCTS = [  # name, category, cents
    ("coffee", "drinks", 310),
    ("tea", "drinks", 260),
    ("juice", "drinks", 340),
    ("cake", "food", 420),
    ("toast", "food", 380),
    ("postcard", "gifts", 150),
]


def revenue(session: SparkSession, url: str, topic: str, table: str) -> DataFrame:
    """Orders, items and cents of each category. With `readStream` in place of `read` the same join runs on a stream."""
    orders = (
        session.read.format("myqueue")
        .option("url", url)
        .option("subscribe", topic)
        .schema("value BINARY")  # only what the query needs is read
        .load()
        .select(f.from_json(f.col("value").cast("string"), "product STRING, quantity INT").alias("order"))
        .select("order.*")
    )
    products = session.read.parquet(table)
    return (
        orders.join(f.broadcast(products), "product")
        .groupBy("category")
        .agg(
            f.count("*").alias("orders"),
            f.sum("quantity").alias("items"),
            f.sum(f.col("quantity") * f.col("cents")).alias("cents"),
        )
        .orderBy("category")
    )


def write_products(session: SparkSession, table: str) -> None:
    products = session.createDataFrame(PRODUCTS, "product STRING, category STRING, cents INT")
    products.coalesce(1).write.mode("overwrite").parquet(table)
    print(f"{len(PRODUCTS)} products written to {table}")


def send_orders(url: str, topic: str, count: int, seed: int) -> None:
    chance = random.Random(seed)
    orders = ({"product": chance.choice(PRODUCTS)[0], "quantity": chance.randint(1, 5)} for _ in range(count))
    with Producer(url, topic=topic) as producer:
        producer.send_many([json.dumps(order) for order in orders])
    print(f"{count} orders sent to {topic}")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m examples.spark_join", description=__doc__.split("\n")[0])
    parser.add_argument("--url", default=os.environ.get("MYQUEUE_URL", "http://127.0.0.1:8080"))
    parser.add_argument("--topic", default="counter-orders")
    parser.add_argument("--orders", type=int, default=1000, help="to send first (default 1000)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--table", help="folder of the Parquet table; it is written anew (default: a new one)")
    given = parser.parse_args(arguments)
    try:
        send_orders(given.url, given.topic, given.orders, given.seed)
        session = build("join", settings=load(url=given.url))
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            table = given.table or f"{folder}/products"
            write_products(session, table)
            for row in revenue(session, given.url, given.topic, table).collect():
                print(f"{row.category:10} {row.orders:7} orders {row['items']:7} items {row.cents / 100:12.2f}")
    except (MyQueueError, SparkFailure, PySparkException, ValueError) as error:
        print(f"{given.url}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
