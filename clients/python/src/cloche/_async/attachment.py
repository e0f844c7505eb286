"""Input and output of a running process over one connection (docs/processes.md, Attach)."""

from __future__ import annotations

import json
from typing import AsyncGenerator, Dict, Literal, Union, cast

from .._answers import fields_of
from .._decode import decode
from .._errors import ClocheConnectionError
from .._models import ProcessEvent, ProcessExit, ProcessGap, ProcessInfo, ProcessOutput
from .data_plane import AsyncDataPlane
from .web_socket import AsyncWebSocket

_SUBPROTOCOL = "v5.channel.k8s.io"
_STDIN, _STDOUT, _STDERR, _STATUS, _RESIZE, _END = 0, 1, 2, 3, 4, 255
_MESSAGE_BYTES = 65_536


class AsyncAttachment:
    """Iterate over it for what the process writes and its end, and write to it meanwhile, from another task or thread.

    A lost connection is ClocheConnectionError: attach again from `offsets` on. Leaving it harms the process not at all.
    """

    def __init__(self, socket: AsyncWebSocket, offsets: Dict[Literal["stdout", "stderr"], int]) -> None:
        self._socket = socket
        self.offsets = offsets
        """Bytes of each stream that were received: `after_stdout` and `after_stderr` of the next attach."""
        self._pieces = self._events()

    @staticmethod
    async def open(data_plane: AsyncDataPlane, path: str, after_stdout: int, after_stderr: int) -> AsyncAttachment:
        query = {"after_stdout": after_stdout, "after_stderr": after_stderr}
        socket = await AsyncWebSocket.open(data_plane, path, subprotocol=_SUBPROTOCOL, query=query)
        return AsyncAttachment(socket, {"stdout": after_stdout, "stderr": after_stderr})

    def __aiter__(self) -> AsyncAttachment:
        return self

    async def __anext__(self) -> ProcessEvent:
        return await self._pieces.__anext__()

    async def __aenter__(self) -> AsyncAttachment:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Detaches; the process goes on."""
        await self._socket.aclose()

    async def write(self, data: Union[str, bytes]) -> None:
        """To standard input, at the pace at which the process reads."""
        whole = data.encode() if isinstance(data, str) else data
        for start in range(0, len(whole), _MESSAGE_BYTES):
            await self._send(_STDIN, whole[start : start + _MESSAGE_BYTES])

    async def end_input(self) -> None:
        """End of file on standard input; to a terminal its end-of-file character."""
        await self._send(_END, bytes((_STDIN,)))

    async def resize(self, *, cols: int, rows: int) -> None:
        """Tells a terminal its new size."""
        await self._send(_RESIZE, json.dumps({"Width": cols, "Height": rows}).encode())

    async def _send(self, channel: int, payload: bytes) -> None:
        await self._socket.send(bytes((channel,)) + payload)

    async def _events(self) -> AsyncGenerator[ProcessEvent, None]:
        async for message in self._socket.messages():
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
