"""Server-sent events out of bytes as they come (the fields `event` and `data`; the rest is dropped). Free of I/O."""

from __future__ import annotations

from typing import Iterator, List, NamedTuple, Optional

from ._errors import ClocheError

_LINE_BYTES = 64 * 1024 * 1024


class ServerSentEvent(NamedTuple):
    event: str
    data: str


class EventParser:
    def __init__(self) -> None:
        self._rest = bytearray()
        self._event = ""
        self._data: List[str] = []

    def feed(self, piece: bytes) -> Iterator[ServerSentEvent]:
        """The events that a piece completes."""
        searched = len(self._rest)
        self._rest += piece
        start = 0
        while (end := self._rest.find(b"\n", max(start, searched))) != -1:
            line = bytes(self._rest[start:end])
            start = end + 1
            event = self._line(line[:-1] if line.endswith(b"\r") else line)
            if event is not None:
                yield event
        del self._rest[:start]
        if len(self._rest) > _LINE_BYTES:
            raise ClocheError("a line of the event stream is too long")

    def _line(self, line: bytes) -> Optional[ServerSentEvent]:
        if line == b"":
            done = ServerSentEvent(self._event or "message", "\n".join(self._data)) if self._data else None
            self._event, self._data = "", []
            return done
        name, _, value = line.partition(b":")
        text = (value[1:] if value.startswith(b" ") else value).decode("utf-8", "replace")
        if name == b"event":
            self._event = text
        elif name == b"data":
            self._data.append(text)
        return None
