"""The messages that every system gets, the loops that time them, and the CPU time that they take."""

import os
import struct
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import psutil

from benchmarks.figures import percentile
from benchmarks.machine import fdatasync_probe
from benchmarks.measurement import Detail, Figure, Pace

_STAMP = struct.Struct("<q")
CHUNK = 10_000  # messages between two reads of the clock
LOW_RATE_PER_S = 50
E2E_RATES_PER_S = (100, 1000)  # goals are for the first


class CpuClock:
    """CPU time of client and servers: a figure that a busy machine changes little."""

    def __init__(self, servers: Mapping[str, int]) -> None:
        self._servers = servers
        self._began = self._spent()

    def details(self) -> dict[str, Detail]:
        """Seconds since it was made."""
        now = self._spent()
        return {f"cpu_s.{name}": round(spent - self._began[name], 3) for name, spent in now.items()}

    def _spent(self) -> dict[str, float]:
        return {"client": time.process_time(), **{name: _family_cpu_s(pid) for name, pid in self._servers.items()}}


def _family_cpu_s(pid: int) -> float:
    """With its child processes: nginx works in its workers."""
    process = psutil.Process(pid)
    times = [member.cpu_times() for member in (process, *process.children(recursive=True))]
    return sum(t.user + t.system + t.children_user + t.children_system for t in times)


def stamped(size: int) -> bytes:
    """A value with its send time: CLOCK_MONOTONIC is the same in all processes of a machine."""
    return _STAMP.pack(time.monotonic_ns()) + bytes(size - _STAMP.size)


def age_s(value: bytes) -> float:
    sent: int = _STAMP.unpack_from(value)[0]
    return (time.monotonic_ns() - sent) / 1e9


def values_of(size: int) -> list[bytes]:
    """Random bytes, different in every message, which no compression can shrink."""
    return [os.urandom(size) for _ in range(CHUNK)]


def produce_for(pace: Pace, send_chunk: Callable[[], int], flush: Callable[[], None]) -> Figure:
    """Sends chunk after chunk and counts the time until the last message is decided."""
    _send_until(time.perf_counter() + pace.warm_up_s, send_chunk)
    flush()
    cpu = CpuClock(pace.servers)
    began = time.perf_counter()
    messages = _send_until(began + pace.seconds, send_chunk)
    flush()
    seconds = time.perf_counter() - began
    return Figure(messages / seconds, "messages/s", seconds, messages, cpu.details())


def _send_until(deadline: float, send_chunk: Callable[[], int]) -> int:
    messages = 0
    while time.perf_counter() < deadline:
        messages += send_chunk()
    return messages


def consume_for(pace: Pace, read_round: Callable[[float], int]) -> Figure:
    """`read_round(deadline)` reads from the first message until the last one or the deadline."""
    read_round(time.perf_counter() + pace.warm_up_s)
    cpu = CpuClock(pace.servers)
    began = time.perf_counter()
    deadline = began + pace.seconds
    messages = rounds = 0
    while time.perf_counter() < deadline:
        read = read_round(deadline)
        if read == 0:
            raise RuntimeError("a round read nothing")
        messages += read
        rounds += 1
    seconds = time.perf_counter() - began
    return Figure(messages / seconds, "messages/s", seconds, messages, {"rounds": rounds, **cpu.details()})


def latency_figure(latencies_s: Sequence[float], seconds: float, **details: Detail) -> Figure:
    """The median in ms is the figure."""
    p50, p99 = (percentile(latencies_s, share) * 1000 for share in (0.50, 0.99))
    return Figure(p50, "ms", seconds, len(latencies_s), {"p50_ms": p50, "p99_ms": p99, **details})


class Ticks:
    """A fixed rate: `wait` returns at the next tick; late ticks are not caught up in a burst."""

    def __init__(self, per_second: float, seconds: float) -> None:
        self._gap_s = 1 / per_second
        self._next = time.perf_counter()
        self._end = self._next + seconds

    def wait_s(self) -> float | None:
        """How long until the next tick; None when the time is over."""
        now = time.perf_counter()
        self._next = max(self._next + self._gap_s, now)
        return None if self._next >= self._end else self._next - now

    def wait(self) -> bool:
        left_s = self.wait_s()
        if left_s is None:
            return False
        time.sleep(left_s)
        return True


def latency_in_turn(pace: Pace, folder: Path, act: Callable[[], None]) -> Figure:
    """Alternates `act` and bare fdatasyncs on the same disk at a low rate: disturbances hit both."""
    with fdatasync_probe(folder) as sync:

        def run(seconds: float) -> tuple[list[float], list[float]]:
            ticks = Ticks(2 * LOW_RATE_PER_S, seconds)
            acts: list[float] = []
            syncs: list[float] = []
            while ticks.wait():
                began = time.perf_counter()
                act()
                acts.append(time.perf_counter() - began)
                if not ticks.wait():
                    break
                syncs.append(sync())
            return acts, syncs

        run(pace.warm_up_s)
        latencies, syncs = run(pace.seconds)
    p50_ms, p99_ms = (percentile(syncs, share) * 1000 for share in (0.5, 0.99))
    return latency_figure(
        latencies, pace.seconds, per_second=LOW_RATE_PER_S, fdatasync_p50_ms=p50_ms, fdatasync_p99_ms=p99_ms
    )


def end_to_end_figure(ages_s: Sequence[float], sent: int, pace: Pace) -> Figure:
    """Without those of the warm-up."""
    if len(ages_s) != sent:
        raise RuntimeError(f"sent {sent} messages, received {len(ages_s)}")
    all_s = pace.warm_up_s + pace.seconds
    skipped = int(sent * pace.warm_up_s / all_s)
    return latency_figure(ages_s[skipped:], pace.seconds, per_second=sent / all_s)
