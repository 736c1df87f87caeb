"""Who has asked and waits: it may hang up, and then nothing may be done in its name any more."""

import asyncio
from collections.abc import Awaitable, Callable
from types import TracebackType


class Client:
    """`with Client(request.gone) as client:` around a wait."""

    def __init__(self, gone: Callable[[], Awaitable[None]]) -> None:
        self._gone = gone
        self._leaving: asyncio.Task[None] | None = None

    @property
    def leaving(self) -> "asyncio.Task[None]":
        """Ends when it has hung up. Only who waits pays for looking."""
        if self._leaving is None:
            self._leaving = asyncio.create_task(self._until_gone())
        return self._leaving

    def watch(self) -> None:
        """Notice from now on when it hangs up."""
        _ = self.leaving

    @property
    def left(self) -> bool:
        return self._leaving is not None and self._leaving.done()

    async def _until_gone(self) -> None:
        await self._gone()

    def __enter__(self) -> "Client":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._leaving is not None:
            self._leaving.cancel()
