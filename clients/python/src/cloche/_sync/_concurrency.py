"""What differs between asyncio and threads: locks, pauses, background work, owners. Its twin is `_async/_concurrency.py`."""

from __future__ import annotations

import os
import threading
import time
from typing import Callable, Dict, Generic, Optional, Tuple, TypeVar

from .._errors import ClocheUsageError

T = TypeVar("T")

sleep = time.sleep


class Local(Generic[T]):
    """One value for each process.

    What a child process inherits by fork is its parent's: it is kept, and never used or closed.
    """

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._values: Dict[int, T] = {}

    def get(self) -> T:
        here = os.getpid()
        value = self._values.get(here)
        return self._values.setdefault(here, self._make()) if value is None else value

    def take(self) -> Optional[T]:
        """The value, which is then forgotten; None if there is none."""
        return self._values.pop(os.getpid(), None)


class Owner:
    """The process that opened a connection. Another one would take answers that are not its own."""

    def __init__(self) -> None:
        self._pid = os.getpid()

    @property
    def is_here(self) -> bool:
        return self._pid == os.getpid()

    def check(self, what: str) -> None:
        if not self.is_here:
            raise ClocheUsageError(f"{what} was opened in another process; open one in this")


class Lock:
    def __init__(self) -> None:
        self._locks = Local(threading.Lock)

    def __reduce__(self) -> Tuple[Callable[[], Lock], Tuple[()]]:
        return Lock, ()

    def __enter__(self) -> None:
        self._locks.get().acquire()

    def __exit__(self, *_: object) -> None:
        self._locks.get().release()


class Background:
    """Runs a function beside the caller. A thread cannot be ended: `function` looks by itself whether it is over."""

    def __init__(self, function: Callable[[], None]) -> None:
        threading.Thread(target=function, daemon=True, name="cloche-stdin").start()

    def cancel(self) -> None:
        pass
