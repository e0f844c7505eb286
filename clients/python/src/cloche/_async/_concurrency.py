"""What differs between asyncio and threads: locks, pauses, background work, owners. Its twin is `_sync/_concurrency.py`."""

from __future__ import annotations

import asyncio
import os
from typing import Any, Callable, Coroutine, Dict, Generic, Optional, Tuple, TypeVar

from .._errors import ClocheUsageError

T = TypeVar("T")
_Place = Tuple[int, Optional[asyncio.AbstractEventLoop]]

sleep = asyncio.sleep


def _here() -> _Place:
    try:
        return os.getpid(), asyncio.get_running_loop()
    except RuntimeError:
        return os.getpid(), None


class AsyncLocal(Generic[T]):
    """One value for each process and event loop.

    What a child process inherits by fork is its parent's: it is kept, and never used or closed. What belongs to a loop that was
    closed is dropped.
    """

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._values: Dict[_Place, T] = {}

    def get(self) -> T:
        here = _here()
        value = self._values.get(here)
        if value is not None:
            return value
        for pid, loop in list(self._values):
            if pid == here[0] and loop is not None and loop.is_closed():
                self._values.pop((pid, loop), None)
        return self._values.setdefault(here, self._make())

    def take(self) -> Optional[T]:
        """The value, which is then forgotten; None if there is none."""
        return self._values.pop(_here(), None)


class AsyncOwner:
    """The process and the event loop that opened a connection. Another one would take answers that are not its own."""

    def __init__(self) -> None:
        self._place = _here()

    @property
    def is_here(self) -> bool:
        return self._place == _here()

    def check(self, what: str) -> None:
        if not self.is_here:
            raise ClocheUsageError(f"{what} was opened in another process or event loop; open one in this")


class AsyncLock:
    def __init__(self) -> None:
        self._locks = AsyncLocal(asyncio.Lock)

    def __reduce__(self) -> Tuple[Callable[[], AsyncLock], Tuple[()]]:
        return AsyncLock, ()

    async def __aenter__(self) -> None:
        await self._locks.get().acquire()

    async def __aexit__(self, *_: object) -> None:
        self._locks.get().release()


class AsyncBackground:
    """Runs a function beside the caller; `cancel` ends it."""

    def __init__(self, function: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._task = asyncio.ensure_future(function())

    def cancel(self) -> None:
        self._task.cancel()
