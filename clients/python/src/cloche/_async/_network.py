"""Connections of the asyncio client. Its twin is `_sync/_network.py`.

Sandboxes are reached through a pool of their own, which connects where `Connection.route` says while TLS and the Host header have the
sandbox's name; the rest goes as httpx does it, proxies of the environment included.
"""

from __future__ import annotations

import ssl
from typing import Any, AsyncIterator, Iterable, Optional, cast

import httpcore
import httpx

from .._connection import Connection
from .._request import CONNECT_SECONDS, HEADERS, KEEP_ALIVE_SECONDS
from .._tls import tls_context


def make_client(connection: Connection, timeout: Optional[float]) -> httpx.AsyncClient:
    context = tls_context(connection)
    direct = _Direct(connection, context)
    local = ["localhost", "*.localhost", "127.0.0.1", "[::1]", f"*.{connection.base_domain}"]
    return httpx.AsyncClient(
        verify=context,
        headers=HEADERS,
        timeout=httpx.Timeout(timeout, connect=CONNECT_SECONDS, pool=None),
        limits=httpx.Limits(max_connections=None, keepalive_expiry=KEEP_ALIVE_SECONDS),
        mounts={f"all://{pattern}": direct for pattern in local},
    )


class _Routed(httpcore.AsyncNetworkBackend):
    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._inner = cast(httpcore.AsyncNetworkBackend, httpcore.AnyIOBackend())

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: Optional[float] = None,
        local_address: Optional[str] = None,
        socket_options: Optional[Iterable[Any]] = None,
    ) -> httpcore.AsyncNetworkStream:
        to_host, to_port = self._connection.route(host, port)
        return await self._inner.connect_tcp(to_host, to_port, timeout, local_address, socket_options)

    async def sleep(self, seconds: float) -> None:
        await self._inner.sleep(seconds)


class _Body(httpx.AsyncByteStream):
    def __init__(self, answer: httpcore.Response) -> None:
        self._answer = answer

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for piece in self._answer.aiter_stream():
                yield piece
        except Exception as error:
            named = _as_httpx(error)
            if named is None:
                raise
            raise named from error

    async def aclose(self) -> None:
        await self._answer.aclose()


class _Direct(httpx.AsyncBaseTransport):
    def __init__(self, connection: Connection, context: ssl.SSLContext) -> None:
        self._pool = httpcore.AsyncConnectionPool(
            ssl_context=context,
            max_connections=None,
            keepalive_expiry=KEEP_ALIVE_SECONDS,
            network_backend=_Routed(connection),
        )

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        url = request.url
        wire = httpcore.Request(
            method=request.method,
            url=httpcore.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path),
            headers=request.headers.raw,
            content=request.stream,
            extensions=request.extensions,
        )
        try:
            answer = await self._pool.handle_async_request(wire)
        except Exception as error:
            named = _as_httpx(error)
            if named is None:
                raise
            raise named from error
        return httpx.Response(
            answer.status, headers=answer.headers, stream=_Body(answer), extensions=cast(Any, answer).extensions
        )

    async def aclose(self) -> None:
        await self._pool.aclose()


def _as_httpx(error: Exception) -> Optional[httpx.TransportError]:
    """httpcore's errors have httpx's names; None for an error of another origin."""
    kind = getattr(httpx, type(error).__name__, None) if type(error).__module__.startswith("httpcore") else None
    return kind(str(error)) if isinstance(kind, type) and issubclass(kind, httpx.TransportError) else None
