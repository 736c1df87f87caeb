"""The routes of the statistics API."""

from myqueue.protocol.route import Route

LIST_RUNS = Route(
    "list_runs", "GET", "/v1/stats/runs", "read", "The last runs of jobs, newest first", "ListRuns", "RunList"
)
PARTITION_STATS = Route(
    "partition_stats",
    "GET",
    "/v1/stats/partitions",
    "read",
    "Messages, bytes and offsets of partitions, as last measured",
    "AskPartitionStats",
    "PartitionStatsList",
    (200,),
    (404,),
)
CONSUMER_STATS = Route(
    "consumer_stats",
    "GET",
    "/v1/stats/consumers",
    "read",
    "How far consumers were behind when last measured, a page at a time",
    "AskConsumerStats",
    "ConsumerStatsList",
    (200,),
    (404,),
)
TOPIC_STATS = Route(
    "topic_stats",
    "GET",
    "/v1/stats/topics",
    "read",
    "Messages and bytes that were appended per topic and minute, newest first",
    "AskTopicStats",
    "TopicMinuteList",
    (200,),
    (404,),
)
TOPIC_TOTALS = Route(
    "topic_totals",
    "GET",
    "/v1/stats/topics/totals",
    "read",
    "Messages, bytes, rates and skew of topics, as last measured",
    "AskTopicTotals",
    "TopicTotalsList",
    (200,),
    (404,),
)
CONSUMER_TOTALS = Route(
    "consumer_totals",
    "GET",
    "/v1/stats/consumers/totals",
    "read",
    "How far consumers were behind over all of their partitions, a page at a time",
    "AskConsumerTotals",
    "ConsumerTotalsList",
    (200,),
    (404,),
)
STATS_PLOT = Route(
    "stats_plot",
    "GET",
    "/v1/stats/plot.svg",
    "read",
    "A figure over time, as a picture",
    "AskPlot",
    None,
    (200,),
    (404,),
)
STATISTICS = (
    PARTITION_STATS,
    CONSUMER_STATS,
    CONSUMER_TOTALS,
    TOPIC_STATS,
    TOPIC_TOTALS,
    LIST_RUNS,
    STATS_PLOT,
)
