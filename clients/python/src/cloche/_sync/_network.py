"""Connections of the client for ordinary programs. Its twin is `_async/_network.py`.

A pool connects where `Connection.route` says while TLS and the Host header have the sandbox's name. What is neither a sandbox nor on
this machine goes through the proxy that the environment names, if any.
"""

from __future__ import annotations

import ssl
from typing import Any, Dict, Iterable, Iterator, Optional, cast

import httpcore
import httpx

from .._connection import Connection
from .._errors import ClocheConfigError
from .._proxy import Proxies
from .._request import CONNECT_SECONDS, HEADERS, KEEP_ALIVE_SECONDS


def make_client(
    connection: Connection, timeout: Optional[float], context: ssl.SSLContext
) -> httpx.Client:
    return httpx.Client(
        transport=_Network(connection, context),
        headers=HEADERS,
        timeout=httpx.Timeout(timeout, connect=CONNECT_SECONDS, pool=None),
        trust_env=False,
    )


class _Network(httpx.BaseTransport):
    def __init__(self, connection: Connection, context: ssl.SSLContext) -> None:
        self._connection = connection
        self._context = context
        self._direct = _Direct(connection, context)
        self._proxies = Proxies()
        self._proxied: Dict[str, httpx.HTTPTransport] = {}

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        url = request.url
        port = url.port or (443 if url.scheme == "https" else 80)
        is_sandbox = url.host.endswith(f".{self._connection.base_domain}")
        proxy = None if is_sandbox else self._proxies.of(url.scheme, url.host, port)
        transport = self._direct if proxy is None else self._through(proxy)
        return transport.handle_request(request)

    def _through(self, proxy: str) -> httpx.HTTPTransport:
        if proxy not in self._proxied:
            try:
                made = httpx.HTTPTransport(
                    verify=self._context,
                    proxy=proxy,
                    limits=httpx.Limits(max_connections=None, keepalive_expiry=KEEP_ALIVE_SECONDS),
                )
            except ImportError as error:
                raise ClocheConfigError(
                    "the environment names a SOCKS proxy, which needs a further package: pip install 'httpx[socks]'"
                ) from error
            except (ValueError, httpx.InvalidURL) as error:
                raise ClocheConfigError(
                    f"the proxy that the environment names cannot be used: {error}; "
                    "HTTP_PROXY, HTTPS_PROXY and ALL_PROXY take http, https, socks5 and socks5h addresses"
                ) from error
            self._proxied[proxy] = made
        return self._proxied[proxy]

    def close(self) -> None:
        for transport in (self._direct, *self._proxied.values()):
            transport.close()


class _Routed(httpcore.NetworkBackend):
    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._inner = cast(httpcore.NetworkBackend, httpcore.SyncBackend())

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: Optional[float] = None,
        local_address: Optional[str] = None,
        socket_options: Optional[Iterable[Any]] = None,
    ) -> httpcore.NetworkStream:
        to_host, to_port = self._connection.route(host, port)
        return self._inner.connect_tcp(to_host, to_port, timeout, local_address, socket_options)

    def sleep(self, seconds: float) -> None:
        self._inner.sleep(seconds)


class _Body(httpx.SyncByteStream):
    def __init__(self, answer: httpcore.Response) -> None:
        self._answer = answer

    def __iter__(self) -> Iterator[bytes]:
        try:
            for piece in self._answer.iter_stream():
                yield piece
        except Exception as error:
            named = _as_httpx(error)
            if named is None:
                raise
            raise named from error

    def close(self) -> None:
        self._answer.close()


class _Direct(httpx.BaseTransport):
    def __init__(self, connection: Connection, context: ssl.SSLContext) -> None:
        self._pool = httpcore.ConnectionPool(
            ssl_context=context,
            max_connections=None,
            keepalive_expiry=KEEP_ALIVE_SECONDS,
            network_backend=_Routed(connection),
        )

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        url = request.url
        wire = httpcore.Request(
            method=request.method,
            url=httpcore.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path),
            headers=request.headers.raw,
            content=request.stream,
            extensions=request.extensions,
        )
        try:
            answer = self._pool.handle_request(wire)
        except Exception as error:
            named = _as_httpx(error)
            if named is None:
                raise
            raise named from error
        return httpx.Response(
            answer.status, headers=answer.headers, stream=_Body(answer), extensions=cast(Any, answer).extensions
        )

    def close(self) -> None:
        self._pool.close()


def _as_httpx(error: Exception) -> Optional[httpx.TransportError]:
    """httpcore's errors have httpx's names; None for an error of another origin."""
    kind = getattr(httpx, type(error).__name__, None) if type(error).__module__.startswith("httpcore") else None
    return kind(str(error)) if isinstance(kind, type) and issubclass(kind, httpx.TransportError) else None
