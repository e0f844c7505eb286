"""A WebSocket to one of a sandbox's routes, over the client's own connections: whole binary messages, the rest is kept from view."""

from __future__ import annotations

from typing import Any, AsyncGenerator, Mapping, cast

import httpx

from .._errors import ClocheConnectionError
from .._paths import QueryValue
from .._web_socket import BINARY, CLOSE, PING, PONG, MessageParser, frame, handshake
from ._concurrency import AsyncLock, AsyncOwner
from .data_plane import AsyncDataPlane

_READ_BYTES = 65_536
_DONE = (1000).to_bytes(2, "big")


class AsyncWebSocket:
    """One may read while others write."""

    def __init__(self, response: httpx.Response) -> None:
        self._response = response
        self._stream: Any = response.extensions["network_stream"]
        self._writing = AsyncLock()
        self._owner = AsyncOwner()
        self._closed = False

    @staticmethod
    async def open(
        data_plane: AsyncDataPlane, path: str, *, subprotocol: str, query: Mapping[str, QueryValue]
    ) -> AsyncWebSocket:
        headers, accept = handshake(subprotocol)
        response = await data_plane.request("GET", path, query=query, headers=headers)
        if response.headers.get("sec-websocket-accept") != accept:
            await response.aclose()
            raise ClocheConnectionError(f"{path} was not answered with a WebSocket; is a proxy in between?")
        return AsyncWebSocket(response)

    async def send(self, payload: bytes) -> None:
        await self._write(frame(BINARY, payload))

    async def messages(self) -> AsyncGenerator[bytes, None]:
        """Until the service closes it: with another code than 1000, or none, ClocheConnectionError says why."""
        parser = MessageParser()
        while True:
            self._owner.check("this connection")
            try:
                piece = cast(bytes, await self._stream.read(_READ_BYTES))
            except Exception as error:
                if self._closed:
                    return
                raise ClocheConnectionError(f"the connection was lost: {error}") from error
            if not piece:
                if self._closed:
                    return
                raise ClocheConnectionError("the connection was lost")
            for opcode, payload in parser.feed(piece):
                if opcode == BINARY:
                    yield payload
                elif opcode == PING:
                    await self._write(frame(PONG, payload))
                elif opcode == CLOSE:
                    self._ended(payload)
                    return

    async def aclose(self) -> None:
        if self._closed or not self._owner.is_here:
            return
        self._closed = True
        try:
            async with self._writing:
                await self._stream.write(frame(CLOSE, _DONE))
        except Exception:
            pass  # It is lost already.
        await self._response.aclose()

    async def _write(self, data: bytes) -> None:
        self._owner.check("this connection")
        try:
            async with self._writing:
                await self._stream.write(data)
        except Exception as error:
            raise ClocheConnectionError(f"the connection was lost: {error}") from error

    def _ended(self, payload: bytes) -> None:
        code = int.from_bytes(payload[:2], "big") if len(payload) >= 2 else 1000
        if code != 1000 and not self._closed:
            raise ClocheConnectionError(f"the service ended the connection: {payload[2:].decode('utf-8', 'replace')} ({code})")
