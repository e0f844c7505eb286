"""What comes piece by piece: iterate over it. Leaving its `with` block, or closing it, ends the call."""

from __future__ import annotations

from typing import AsyncGenerator, Generic, TypeVar

T = TypeVar("T")


class AsyncStream(Generic[T]):
    def __init__(self, pieces: AsyncGenerator[T, None]) -> None:
        self._pieces = pieces

    def __aiter__(self) -> AsyncStream[T]:
        return self

    async def __anext__(self) -> T:
        return await self._pieces.__anext__()

    async def __aenter__(self) -> AsyncStream[T]:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        await self._pieces.aclose()


class AsyncByteStream(AsyncStream[bytes]):
    """Bytes as they come."""

    async def read(self) -> bytes:
        """All that is left."""
        return b"".join([piece async for piece in self])
