"""Lease changes: a waiting read manager gets them at once, and one that is behind or new learns that it missed some."""

import asyncio

from write_manager.lease_changes import REMEMBERED, LeaseChanges

EPOCH = 7 << 32


def changes() -> LeaseChanges:
    return LeaseChanges(lambda: 7)


def test_a_waiting_request_is_answered_by_the_next_change() -> None:
    async def whole() -> None:
        log = changes()
        first = await log.since({"after": -1, "wait_ms": 9000})
        assert (first["last"], first["complete"], first["changed"]) == (EPOCH, False, [])
        waiting = [asyncio.create_task(log.since({"after": EPOCH, "wait_ms": 9000})) for _ in range(3)]
        await asyncio.sleep(0)
        log.publish(5, [])
        await asyncio.sleep(0)
        assert not any(one.done() for one in waiting), "nothing has changed"
        log.publish(5, ["a", "b"])
        for one in waiting:
            answer = await asyncio.wait_for(one, 5)
            assert answer["complete"]
            assert answer["changed"] == [{"consumer_id": 5, "member": "a"}, {"consumer_id": 5, "member": "b"}]
            assert answer["last"] == EPOCH + 2

    asyncio.run(whole())


def test_what_came_between_two_requests_is_not_lost() -> None:
    async def whole() -> None:
        log = changes()
        log.publish(5, ["a"])
        log.publish(6, ["b"])
        answer = await log.since({"after": EPOCH + 1, "wait_ms": 9000})
        assert (answer["complete"], answer["changed"]) == (True, [{"consumer_id": 6, "member": "b"}])

    asyncio.run(whole())


def test_one_that_is_too_far_behind_or_knows_another_write_manager_learns_so() -> None:
    async def whole() -> None:
        log = changes()
        for number in range(REMEMBERED + 1):
            log.publish(number, ["a"])
        for after in (-1, (6 << 32) + 5, EPOCH, (8 << 32) + 1):
            answer = await log.since({"after": after, "wait_ms": 9000})
            assert (answer["last"], answer["complete"], answer["changed"]) == (EPOCH + REMEMBERED + 1, False, [])
        assert len((await log.since({"after": EPOCH + 1, "wait_ms": 0}))["changed"]) == REMEMBERED

    asyncio.run(whole())


def test_stopping_answers_those_that_wait() -> None:
    async def whole() -> None:
        log = changes()
        waiting = asyncio.create_task(log.since({"after": EPOCH, "wait_ms": 9000}))
        await asyncio.sleep(0)
        log.stop()
        assert (await asyncio.wait_for(waiting, 5))["changed"] == []
        assert (await asyncio.wait_for(log.since({"after": EPOCH, "wait_ms": 9000}), 5))["changed"] == []

    asyncio.run(whole())
