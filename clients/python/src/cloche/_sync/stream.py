"""What comes piece by piece: iterate over it. Leaving its `with` block, or closing it, ends the call."""

from __future__ import annotations

from typing import Generator, Generic, TypeVar

T = TypeVar("T")


class Stream(Generic[T]):
    def __init__(self, pieces: Generator[T, None, None]) -> None:
        self._pieces = pieces

    def __iter__(self) -> Stream[T]:
        return self

    def __next__(self) -> T:
        return self._pieces.__next__()

    def __enter__(self) -> Stream[T]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._pieces.close()


class ByteStream(Stream[bytes]):
    """Bytes as they come."""

    def read(self) -> bytes:
        """All that is left."""
        return b"".join([piece for piece in self])
