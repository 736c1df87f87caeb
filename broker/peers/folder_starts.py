"""How often the data folders of the other brokers were started: a folder that comes with less is an older copy."""

from collections.abc import Callable, Mapping

from broker.peers.handshake import DataFolder

_FOLDERS_PER_BROKER = 16  # the latest; a broker with storage in memory has another folder at every start


class FolderStarts:
    """Not thread-safe: used on the event loop."""

    def __init__(
        self, known: Mapping[tuple[int, int], int], remember: Callable[[int, int, int], None] = lambda *_: None
    ) -> None:
        """`known` and `remember` are of (broker id, incarnation) and the count of starts. `remember` must not block."""
        self._starts = dict(known)
        self._sessions: dict[tuple[int, int], int] = {}
        self._remember = remember

    def known(self) -> dict[tuple[int, int], int]:
        return dict(self._starts)

    def check(self, broker_id: int, folder: DataFolder) -> int | None:
        """The count of starts that refutes the folder, or None and the folder is remembered.

        Equal counts are of the same process, unless their sessions differ: two processes cannot have made the same
        start. After a restart here the session is not known, and the first one counts.
        """
        key = (broker_id, folder.incarnation)
        seen = self._starts.get(key)
        session = self._sessions.get(key, folder.session)
        if seen is not None and (folder.starts < seen or (folder.starts == seen and folder.session != session)):
            return seen
        self._sessions[key] = folder.session
        if seen is None or folder.starts > seen:
            self._starts.pop(key, None)  # the latest is the last
            self._starts[key] = folder.starts
            self._forget_oldest(broker_id)
            self._remember(broker_id, folder.incarnation, folder.starts)
        return None

    def _forget_oldest(self, broker_id: int) -> None:
        of_broker = [key for key in self._starts if key[0] == broker_id]
        for key in of_broker[:-_FOLDERS_PER_BROKER]:
            del self._starts[key]
            self._sessions.pop(key, None)
