"""CPU time of the client and of the servers while the clock runs: a figure that a busy machine changes little."""

import time
from collections.abc import Mapping

import psutil

from benchmarks.measurement import Detail


class CpuClock:
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
    """With the processes below it: nginx's work is done by its workers."""
    process = psutil.Process(pid)
    times = [member.cpu_times() for member in (process, *process.children(recursive=True))]
    return sum(t.user + t.system + t.children_user + t.children_system for t in times)
