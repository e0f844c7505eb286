"""Sends requests and answers 2xx responses, their bodies unread; every other end is a typed error."""

from __future__ import annotations

from typing import Callable, Generator, Iterator, Optional, Tuple, Union
from urllib.parse import urlsplit

import httpx

from .._answers import error_of_answer
from .._connection import Connection
from .._errors import ClocheError, ClocheUsageError
from .._failures import no_answer
from .._request import Request
from .._retry import pause_before_retry
from .._tls import tls_context
from ._concurrency import Local, Owner, sleep
from ._network import make_client

SWITCHING_PROTOCOLS = 101
"""A WebSocket is open: its bytes are read and written by `response.extensions["network_stream"]`."""

Body = Union[bytes, Iterator[bytes]]
Watch = Callable[[httpx.Response], None]


class Transport:
    def __init__(self, connection: Connection, timeout: Optional[float]) -> None:
        self._made_of = (connection, timeout)
        context = tls_context(connection)
        self._clients = Local(lambda: make_client(connection, timeout, context))
        self._closed = False
        self.watch: Optional[Watch] = None
        """Called with every response, before its body is read."""

    def __reduce__(self) -> Tuple[Callable[..., Transport], Tuple[Connection, Optional[float]]]:
        return Transport, self._made_of

    def send(self, request: Request[Body]) -> httpx.Response:
        """Repeats what is safe to repeat."""
        repeatable = request.repeatable and not isinstance(request.body, Iterator)
        attempt = 0
        while True:
            try:
                return self._send_once(request)
            except ClocheError as error:
                pause = pause_before_retry(error, attempt) if repeatable else None
                if pause is None:
                    raise
            sleep(pause)
            attempt += 1

    def read(self, response: httpx.Response) -> bytes:
        """The whole body."""
        try:
            return response.read()
        except (httpx.TransportError, httpx.StreamError) as error:
            raise no_answer(error, response.request.url.netloc.decode(), gateway=False) from error
        finally:
            response.close()

    def stream(self, response: httpx.Response) -> Generator[bytes, None, None]:
        """The body as it comes; closing the generator closes the connection."""
        return self._pieces(response, Owner())

    def close(self) -> None:
        self._closed = True
        client = self._clients.take()
        if client is not None:
            client.close()

    def _pieces(self, response: httpx.Response, owner: Owner) -> Generator[bytes, None, None]:
        try:
            owner.check("this stream")
            for piece in response.iter_raw():
                yield piece
                owner.check("this stream")
        except (httpx.TransportError, httpx.StreamError) as error:
            raise no_answer(error, response.request.url.netloc.decode(), gateway=False) from error
        finally:
            if owner.is_here:
                response.close()

    def _send_once(self, request: Request[Body]) -> httpx.Response:
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
            if isinstance(message.stream, httpx.SyncByteStream) and not isinstance(request.body, bytes):
                message.stream = source = _Source(message.stream)
            response = client.send(message, stream=True)
        except (httpx.TransportError, httpx.InvalidURL, OSError) as error:
            if source is not None and source.failure is not None:
                raise source.failure
            raise no_answer(error, urlsplit(request.url).netloc, gateway=request.gateway) from error
        if self.watch is not None:
            self.watch(response)
        if response.is_success or response.status_code == SWITCHING_PROTOCOLS:
            return response
        body = self.read(response)
        raise error_of_answer(body, response.status_code, response.headers, response.reason_phrase)


class _Source(httpx.SyncByteStream):
    """A body from the caller's iterator. An error of the iterator is the caller's own, never a lost connection."""

    def __init__(self, pieces: httpx.SyncByteStream) -> None:
        self._pieces = pieces
        self.failure: Optional[Exception] = None

    def __iter__(self) -> Generator[bytes, None, None]:
        try:
            for piece in self._pieces:
                yield piece
        except Exception as error:
            self.failure = error
            raise

    def close(self) -> None:
        self._pieces.close()
