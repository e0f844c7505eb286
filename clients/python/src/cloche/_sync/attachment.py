"""Input and output of a running process over one connection (docs/processes.md, Attach)."""

from __future__ import annotations

import json
from typing import Dict, Generator, Literal, Union, cast

from .._answers import fields_of
from .._decode import decode
from .._errors import ClocheConnectionError
from .._models import ProcessEvent, ProcessExit, ProcessGap, ProcessInfo, ProcessOutput
from .data_plane import DataPlane
from .web_socket import WebSocket

_SUBPROTOCOL = "v5.channel.k8s.io"
_STDIN, _STDOUT, _STDERR, _STATUS, _RESIZE, _END = 0, 1, 2, 3, 4, 255
_MESSAGE_BYTES = 65_536


class Attachment:
    """Iterate over it for what the process writes and its end, and write to it meanwhile, from another task or thread.

    A lost connection is ClocheConnectionError: attach again from `offsets` on. Leaving it harms the process not at all.
    """

    def __init__(self, socket: WebSocket, offsets: Dict[Literal["stdout", "stderr"], int]) -> None:
        self._socket = socket
        self.offsets = offsets
        """Bytes of each stream that were received: `after_stdout` and `after_stderr` of the next attach."""
        self._pieces = self._events()

    @staticmethod
    def open(data_plane: DataPlane, path: str, after_stdout: int, after_stderr: int) -> Attachment:
        query = {"after_stdout": after_stdout, "after_stderr": after_stderr}
        socket = WebSocket.open(data_plane, path, subprotocol=_SUBPROTOCOL, query=query)
        return Attachment(socket, {"stdout": after_stdout, "stderr": after_stderr})

    def __iter__(self) -> Attachment:
        return self

    def __next__(self) -> ProcessEvent:
        return self._pieces.__next__()

    def __enter__(self) -> Attachment:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Detaches; the process goes on."""
        self._socket.close()

    def write(self, data: Union[str, bytes]) -> None:
        """To standard input, at the pace at which the process reads."""
        whole = data.encode() if isinstance(data, str) else data
        for start in range(0, len(whole), _MESSAGE_BYTES):
            self._send(_STDIN, whole[start : start + _MESSAGE_BYTES])

    def end_input(self) -> None:
        """End of file on standard input; to a terminal its end-of-file character."""
        self._send(_END, bytes((_STDIN,)))

    def resize(self, *, cols: int, rows: int) -> None:
        """Tells a terminal its new size."""
        self._send(_RESIZE, json.dumps({"Width": cols, "Height": rows}).encode())

    def _send(self, channel: int, payload: bytes) -> None:
        self._socket.send(bytes((channel,)) + payload)

    def _events(self) -> Generator[ProcessEvent, None, None]:
        for message in self._socket.messages():
            channel, payload = message[0], message[1:]
            if channel in (_STDOUT, _STDERR):
                stream: Literal["stdout", "stderr"] = "stdout" if channel == _STDOUT else "stderr"
                offset = self.offsets[stream]
                self.offsets[stream] = offset + len(payload)
                yield ProcessOutput(stream, offset, payload)
            elif channel == _STATUS:
                told = cast(object, json.loads(payload))
                if "gap" not in fields_of(told):
                    yield ProcessExit(decode(ProcessInfo, told, "exit"))
                    return
                gap = decode(ProcessGap, fields_of(told)["gap"], "gap")
                self.offsets[gap.stream] = gap.to
                yield gap
        raise ClocheConnectionError("the connection was ended before the process was")
