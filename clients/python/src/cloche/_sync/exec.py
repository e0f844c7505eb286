"""Commands whose output comes as it is written, and whose input may come while they run."""

from __future__ import annotations

import base64
import json
import uuid
from typing import Dict, Generator, Iterable, Literal, Mapping, NamedTuple, Optional, Sequence, Union, cast

from .._answers import error_of, fields_of
from .._decode import decode
from .._errors import ClocheAPIError, ClocheConnectionError, ClocheError, NotFoundError
from .._models import ExecBytes, ExecBytesEvent, ExecEvent, ExecExit, ExecOutput
from .._paths import command, compact
from .._sse import EventParser
from ._concurrency import Background
from .data_plane import DataPlane

_PIECE_BYTES = 512 * 1024

Stdin = Union[str, bytes, Iterable[bytes]]
"""Text as UTF-8, bytes, or pieces of any number that come while the command runs."""


def exec_fields(
    cmd: Sequence[str],
    dir: Optional[str],
    env: Optional[Mapping[str, str]],
    timeout_ms: Optional[int],
    user: Optional[str],
) -> Dict[str, object]:
    return compact(cmd=command(cmd), dir=dir, env=env, timeout_ms=timeout_ms, user=user)


def stdin_fields(stdin: Union[str, bytes, None]) -> Dict[str, object]:
    if isinstance(stdin, bytes):
        return {"stdin_base64": base64.b64encode(stdin).decode()}
    return compact(stdin=stdin)


def exec_events(data_plane: DataPlane, fields: Dict[str, object]) -> Generator[ExecEvent, None, None]:
    for event in _events(data_plane, fields, None):
        if isinstance(event, ExecExit):
            yield event
        else:
            yield ExecOutput(event.type, event.data)


def exec_bytes_events(
    data_plane: DataPlane, fields: Dict[str, object], stdin: Optional[Stdin]
) -> Generator[ExecBytesEvent, None, None]:
    fields = {**fields, "output_encoding": "base64"}
    source = None
    if stdin is None or isinstance(stdin, (str, bytes)):
        fields.update(stdin_fields(stdin))
    else:
        source = stdin
    for event in _events(data_plane, fields, source):
        if isinstance(event, ExecExit):
            yield event
        else:
            yield ExecBytes(event.type, base64.b64decode(event.data) if event.is_base64 else event.data.encode())


class _Output(NamedTuple):
    type: Literal["stdout", "stderr"]
    data: str
    is_base64: bool


def _events(
    data_plane: DataPlane, fields: Dict[str, object], source: Optional[Iterable[bytes]]
) -> Generator[Union[_Output, ExecExit], None, None]:
    name = uuid.uuid4().hex
    if source is not None:
        fields = {**fields, "stdin_stream": name}
    accept = {"accept": "text/event-stream"}
    response = data_plane.request("POST", "/v1/exec", json=fields, headers=accept)
    # From here on the command runs.
    feed = None if source is None else _Feed(data_plane, name, source)
    parser = EventParser()
    pieces = data_plane.pieces(response)
    try:
        for piece in pieces:
            if feed is not None and feed.error is not None:
                raise feed.error
            for event, data in parser.feed(piece):
                body = cast(object, json.loads(data))
                if event == "exit":
                    if feed is not None and feed.error is not None:
                        raise feed.error
                    yield decode(ExecExit, body, "exit")
                    return
                if event == "error":
                    raise error_of(body, response.status_code, response.headers)
                if event in ("stdout", "stderr"):
                    yield _output(event, body)
    except ClocheAPIError:
        raise
    except ClocheConnectionError as error:
        if feed is not None and error is feed.error:
            raise
        raise _lost() from error
    finally:
        if feed is not None:
            feed.stop()
        pieces.close()
    raise _lost()


def _output(event: str, body: object) -> _Output:
    fields = fields_of(body)
    data = fields.get("data")
    if not isinstance(data, str):
        raise ClocheError(f"the event {event} of the service has no text as data")
    return _Output("stdout" if event == "stdout" else "stderr", data, fields.get("output_encoding") == "base64")


def _lost() -> ClocheConnectionError:
    return ClocheConnectionError("the connection was lost before the command ended; it may run on")


class _Feed:
    """Passes pieces on to the command as they come. `error`: the source or a write failed while the command ran."""

    def __init__(self, data_plane: DataPlane, name: str, source: Iterable[bytes]) -> None:
        self.error: Optional[Exception] = None
        self._data_plane = data_plane
        self._name = name
        self._source = source
        self._over = False
        self._work = Background(self._run)

    def stop(self) -> None:
        """The command's end does not wait for its input."""
        self._over = True
        self._work.cancel()

    def _run(self) -> None:
        try:
            for piece in self._source:
                for start in range(0, len(piece), _PIECE_BYTES):
                    if self._over:
                        return
                    part = piece[start : start + _PIECE_BYTES]
                    if not self._write(data_base64=base64.b64encode(part).decode()):
                        return
        except Exception as error:
            self.error = None if self._over else error
        try:
            self._write(end=True)
        except ClocheError as error:
            if not self._over:
                self.error = self.error or error

    def _write(self, **fields: object) -> bool:
        """False: the command has ended and its last event is on the way."""
        try:
            self._data_plane.json("POST", "/v1/exec/stdin", json={"stream": self._name, **fields})
        except NotFoundError:
            return False
        return True
