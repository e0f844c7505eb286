"""What differs between asyncio and threads: a lock, a pause, work beside the caller's. Its twin is `_async/_concurrency.py`."""

from __future__ import annotations

import threading
import time
from typing import Callable

sleep = time.sleep


class Lock:
    def __init__(self) -> None:
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


class Background:
    """Runs a function beside the caller. A thread cannot be ended: `function` looks by itself whether it is over."""

    def __init__(self, function: Callable[[], None]) -> None:
        threading.Thread(target=function, daemon=True, name="cloche-stdin").start()

    def cancel(self) -> None:
        pass
