"""What differs between asyncio and threads: a lock, a pause, work beside the caller's. Its twin is `_sync/_concurrency.py`."""

from __future__ import annotations

import asyncio
from typing import Any, Callable, Coroutine, Optional

sleep = asyncio.sleep


class AsyncLock:
    """Bound to the loop that first takes it, also on Python 3.9."""

    def __init__(self) -> None:
        self._lock: Optional[asyncio.Lock] = None

    async def __aenter__(self) -> None:
        if self._lock is None:
            self._lock = asyncio.Lock()
        await self._lock.acquire()

    async def __aexit__(self, *_: object) -> None:
        if self._lock is not None:
            self._lock.release()


class AsyncBackground:
    """Runs a function beside the caller; `cancel` ends it."""

    def __init__(self, function: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._task = asyncio.ensure_future(function())

    def cancel(self) -> None:
        self._task.cancel()
