"""Sends requests and answers 2xx responses, their bodies unread; every other end is a typed error."""

from __future__ import annotations

from typing import AsyncGenerator, AsyncIterator, Callable, Optional, Tuple, Union
from urllib.parse import urlsplit

import httpx

from .._answers import error_of_answer
from .._connection import Connection
from .._errors import ClocheError, ClocheUsageError
from .._failures import no_answer
from .._request import Request
from .._retry import pause_before_retry
from .._tls import tls_context
from ._concurrency import AsyncLocal, AsyncOwner, sleep
from ._network import make_client

SWITCHING_PROTOCOLS = 101
"""A WebSocket is open: its bytes are read and written by `response.extensions["network_stream"]`."""

AsyncBody = Union[bytes, AsyncIterator[bytes]]
Watch = Callable[[httpx.Response], None]


class AsyncTransport:
    def __init__(self, connection: Connection, timeout: Optional[float]) -> None:
        self._made_of = (connection, timeout)
        context = tls_context(connection)
        self._clients = AsyncLocal(lambda: make_client(connection, timeout, context))
        self._closed = False
        self.watch: Optional[Watch] = None
        """Called with every response, before its body is read."""

    def __reduce__(self) -> Tuple[Callable[..., AsyncTransport], Tuple[Connection, Optional[float]]]:
        return AsyncTransport, self._made_of

    async def send(self, request: Request[AsyncBody]) -> httpx.Response:
        """Repeats what is safe to repeat."""
        repeatable = request.repeatable and not isinstance(request.body, AsyncIterator)
        attempt = 0
        while True:
            try:
                return await self._send_once(request)
            except ClocheError as error:
                pause = pause_before_retry(error, attempt) if repeatable else None
                if pause is None:
                    raise
            await sleep(pause)
            attempt += 1

    async def read(self, response: httpx.Response) -> bytes:
        """The whole body."""
        try:
            return await response.aread()
        except (httpx.TransportError, httpx.StreamError) as error:
            raise no_answer(error, response.request.url.netloc.decode(), gateway=False) from error
        finally:
            await response.aclose()

    def stream(self, response: httpx.Response) -> AsyncGenerator[bytes, None]:
        """The body as it comes; closing the generator closes the connection."""
        return self._pieces(response, AsyncOwner())

    async def aclose(self) -> None:
        self._closed = True
        client = self._clients.take()
        if client is not None:
            await client.aclose()

    async def _pieces(self, response: httpx.Response, owner: AsyncOwner) -> AsyncGenerator[bytes, None]:
        try:
            owner.check("this stream")
            async for piece in response.aiter_raw():
                yield piece
                owner.check("this stream")
        except (httpx.TransportError, httpx.StreamError) as error:
            raise no_answer(error, response.request.url.netloc.decode(), gateway=False) from error
        finally:
            if owner.is_here:
                await response.aclose()

    async def _send_once(self, request: Request[AsyncBody]) -> httpx.Response:
        if self._closed:
            raise ClocheUsageError("this client was closed; make another one")
        client = self._clients.get()
        source: Optional[_Source] = None
        try:
            message = client.build_request(
                request.method, request.url, headers=request.headers, content=request.body
            )
            if request.target is not None:
                message.extensions["target"] = request.target
            if isinstance(message.stream, httpx.AsyncByteStream) and not isinstance(request.body, bytes):
                message.stream = source = _Source(message.stream)
            response = await client.send(message, stream=True)
        except (httpx.TransportError, httpx.InvalidURL, OSError) as error:
            if source is not None and source.failure is not None:
                raise source.failure
            raise no_answer(error, urlsplit(request.url).netloc, gateway=request.gateway) from error
        if self.watch is not None:
            self.watch(response)
        if response.is_success or response.status_code == SWITCHING_PROTOCOLS:
            return response
        body = await self.read(response)
        raise error_of_answer(body, response.status_code, response.headers, response.reason_phrase)


class _Source(httpx.AsyncByteStream):
    """A body from the caller's iterator. An error of the iterator is the caller's own, never a lost connection."""

    def __init__(self, pieces: httpx.AsyncByteStream) -> None:
        self._pieces = pieces
        self.failure: Optional[Exception] = None

    async def __aiter__(self) -> AsyncGenerator[bytes, None]:
        try:
            async for piece in self._pieces:
                yield piece
        except Exception as error:
            self.failure = error
            raise

    async def aclose(self) -> None:
        await self._pieces.aclose()
