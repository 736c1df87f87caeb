"""Who is who: a group is one partition of one topic, a member is one data file of one broker.

A topic that is deleted and made again has another UUID, so it is another group and old frames cannot reach it. A broker
whose data was erased, restored or found corrupt has another incarnation, so it is another member: what the lost one
voted for or acknowledged is never taken for a promise of the new one.
"""

from typing import NamedTuple
from uuid import UUID


class GroupId(NamedTuple):
    topic: UUID
    partition: int


class Member(NamedTuple):
    broker_id: int
    incarnation: int
