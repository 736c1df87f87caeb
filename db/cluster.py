"""Who belongs to the cluster and what they hold, as the catalog knows it."""

from datetime import datetime
from typing import Literal

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from db.models import BrokerMetadata, ManagerMetadata, PartitionMetadata, Topic, WriteManagerEpoch
from myqueue.protocol.answers import Cluster, ClusterBroker, ClusterManager, ClusterWriter
from myqueue.protocol.models import Nothing


def read_cluster(session: Session, _: Nothing) -> Cluster:
    """Without the databases: whoever answers asks them itself."""
    partitions = session.execute(select(PartitionMetadata.broker_id, PartitionMetadata.replicas)).all()
    leads = [leader for leader, _ in partitions]
    holds = [broker_id for _, replicas in partitions for broker_id in replicas]
    writer = session.get(WriteManagerEpoch, 1)
    return Cluster(
        brokers=[
            ClusterBroker(
                broker_id=row.broker_id,
                state=_state(row.status),
                leads=leads.count(row.broker_id),
                holds=holds.count(row.broker_id),
                last_heartbeat=_ms(row.last_heartbeat),
            )
            for row in session.scalars(select(BrokerMetadata).order_by(BrokerMetadata.broker_id))
        ],
        read_managers=[
            ClusterManager(name=row.name, state=_state(row.status), last_heartbeat=_ms(row.last_heartbeat))
            for row in session.scalars(select(ManagerMetadata).order_by(ManagerMetadata.name))
        ],
        write_manager=None if writer is None else ClusterWriter(name=writer.holder, epoch=writer.epoch),
        databases=[],
        topics=session.scalar(select(func.count()).select_from(Topic)) or 0,
        partitions=len(partitions),
    )


def _state(status: str) -> Literal["active", "inactive"]:
    return "active" if status == "active" else "inactive"


def _ms(when: datetime) -> int:
    return round(when.timestamp() * 1000)
