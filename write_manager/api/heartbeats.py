"""Heartbeats, on the event loop: they must not queue behind requests that wait for PostgreSQL."""

import asyncio

from pydantic import TypeAdapter

from myqueue.protocol import internal
from myqueue.protocol.errors import BrokerNotFound
from myqueue.protocol.internal import BrokerHeartbeat, ManagerHeartbeat
from service.http_messages import HttpRequest, HttpResponse
from service.router import Router
from write_manager.membership import Membership

_BROKER = TypeAdapter(BrokerHeartbeat)
_MANAGER = TypeAdapter(ManagerHeartbeat)


def add_heartbeat_routes(router: Router, members: Membership) -> None:
    async def broker_heartbeat(request: HttpRequest) -> HttpResponse:
        broker_id = request.path_values["broker_id"]
        if not (broker_id.isascii() and broker_id.isdecimal() and len(broker_id) <= 10):
            raise BrokerNotFound()
        members.heartbeat(int(broker_id), request.parse_internal(_BROKER))
        return HttpResponse.json({"status": "success", "peers": members.peers(), "clock_ms": members.median_clock_ms()})

    async def manager_heartbeat(request: HttpRequest) -> HttpResponse:
        said = request.parse_internal(_MANAGER)
        if members.knows_manager(said["name"], said["endpoint"]):
            members.manager_heartbeat(said)
        else:
            await asyncio.to_thread(members.manager_heartbeat, said)  # a new address has to be resolved
        return HttpResponse.json({"status": "success"})

    async def data_addresses(_: HttpRequest) -> HttpResponse:
        return HttpResponse.json({"status": "success", "brokers": members.data_addresses()})

    async def manager_addresses(_: HttpRequest) -> HttpResponse:
        return HttpResponse.json({"status": "success", "managers": members.manager_addresses()})

    router.add(internal.BROKER_HEARTBEAT, broker_heartbeat, quiet=True)
    router.add(internal.MANAGER_HEARTBEAT, manager_heartbeat, quiet=True)
    router.add(internal.DATA_ADDRESSES, data_addresses, quiet=True)
    router.add(internal.MANAGER_ADDRESSES, manager_addresses, quiet=True)
