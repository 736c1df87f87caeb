"""Heartbeats, and who is alive by them: on the event loop, where they wait for no request that waits for PostgreSQL."""

import asyncio

from pydantic import TypeAdapter

from myqueue.protocol import internal
from myqueue.protocol.errors import BrokerNotFound
from myqueue.protocol.internal import BrokerHeartbeat, ManagerHeartbeat
from service.hot import HotAnswer, HotRequest, HotRoutes
from write_manager.api.hot import parsed_body
from write_manager.membership import Membership

_BROKER = TypeAdapter(BrokerHeartbeat)
_MANAGER = TypeAdapter(ManagerHeartbeat)


def add_heartbeat_routes(hot: HotRoutes, members: Membership) -> None:
    async def broker_heartbeat(request: HotRequest) -> HotAnswer:
        broker_id = request.path_values["broker_id"]
        if not (broker_id.isascii() and broker_id.isdecimal() and len(broker_id) <= 10):
            raise BrokerNotFound()
        members.heartbeat(int(broker_id), parsed_body(request, _BROKER))
        return HotAnswer.json({"status": "success", "peers": members.peers(), "clock_ms": members.median_clock_ms()})

    async def manager_heartbeat(request: HotRequest) -> HotAnswer:
        said = parsed_body(request, _MANAGER)
        if members.knows_manager(said["name"], said["endpoint"]):
            members.manager_heartbeat(said)
        else:
            await asyncio.to_thread(members.manager_heartbeat, said)  # a new address has to be resolved
        return HotAnswer.json({"status": "success"})

    async def data_addresses(_: HotRequest) -> HotAnswer:
        return HotAnswer.json({"status": "success", "brokers": members.data_addresses()})

    async def manager_addresses(_: HotRequest) -> HotAnswer:
        return HotAnswer.json({"status": "success", "managers": members.manager_addresses()})

    for name, method, path, handler in (
        ("receive_heartbeat", "POST", internal.BROKER_HEARTBEAT, broker_heartbeat),
        ("manager_heartbeat", "POST", internal.MANAGER_HEARTBEAT, manager_heartbeat),
        ("data_addresses", "GET", internal.DATA_ADDRESSES, data_addresses),
        ("manager_addresses", "GET", internal.MANAGER_ADDRESSES, manager_addresses),
    ):
        hot.add(name, method, path, handler, inside=True)
        hot.quiet.add(name)
