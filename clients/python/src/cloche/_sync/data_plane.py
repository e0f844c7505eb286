"""Requests to one sandbox: its address, its token with one renewal and repeat on 401, typed errors."""

from __future__ import annotations

from typing import Callable, Dict, Generator, Mapping, Optional

import httpx

from .._answers import json_of, with_remedy
from .._clock import ServiceClock
from .._errors import UnauthenticatedError
from .._paths import QueryValue, json_body, query_string
from .._request import Request
from ._transport import Body, Transport
from .stream import ByteStream
from .token_source import TokenSource


class DataPlane:
    """For routes that the client has no method for; every method of a sandbox goes through it."""

    def __init__(
        self,
        transport: Transport,
        tokens: TokenSource,
        clock: ServiceClock,
        base_url: Callable[[], str],
    ) -> None:
        self._transport = transport
        self._tokens = tokens
        self._clock = clock
        self._base_url = base_url

    def request(
        self,
        method: str,
        path: str,
        *,
        query: Optional[Mapping[str, QueryValue]] = None,
        headers: Optional[Mapping[str, str]] = None,
        json: object = None,
        body: Optional[Body] = None,
        repeatable: Optional[bool] = None,
        target: Optional[bytes] = None,
    ) -> httpx.Response:
        """Answers a 2xx response, its body unread: close it. `repeatable`: by default every method but POST."""
        sent: Dict[str, str] = dict(headers or {})
        if json is not None:
            sent.setdefault("content-type", "application/json")
            body = json_body(json)
        once = repeatable if repeatable is not None else method != "POST"

        token = self._tokens.get()  # It comes with the address.
        url = f"{self._base_url()}{path}{query_string(query or {})}"

        def attempt(jwt: str) -> httpx.Response:
            authorized = {"authorization": f"Bearer {jwt}", **sent}
            return self._transport.send(Request(method, url, authorized, body, once, target=target))

        try:
            return attempt(token)
        except UnauthenticatedError as error:
            if body is not None and not isinstance(body, bytes):
                raise self._told(error) from None
        fresh = self._tokens.replace(token)
        try:
            return attempt(fresh)
        except UnauthenticatedError as error:
            raise self._told(error) from None

    def json(
        self,
        method: str,
        path: str,
        *,
        query: Optional[Mapping[str, QueryValue]] = None,
        headers: Optional[Mapping[str, str]] = None,
        json: object = None,
        body: Optional[Body] = None,
        repeatable: Optional[bool] = None,
    ) -> object:
        """The JSON of the answer."""
        response = self.request(
            method, path, query=query, headers=headers, json=json, body=body, repeatable=repeatable
        )
        return json_of(self._transport.read(response), f"the answer of {method} {path}")

    def read(
        self, path: str, *, query: Mapping[str, QueryValue], headers: Optional[Mapping[str, str]] = None
    ) -> bytes:
        """The bytes that a GET answers."""
        return self._transport.read(self.request("GET", path, query=query, headers=headers))

    def stream(
        self, path: str, *, query: Mapping[str, QueryValue], headers: Optional[Mapping[str, str]] = None
    ) -> ByteStream:
        """The bytes that a GET answers, as they come."""
        return ByteStream(self.pieces(self.request("GET", path, query=query, headers=headers)))

    def pieces(self, response: httpx.Response) -> Generator[bytes, None, None]:
        """The body of a response; closing the generator closes the connection."""
        return self._transport.stream(response)

    def _told(self, error: UnauthenticatedError) -> Exception:
        remedy = self._clock.remedy()
        return error if remedy is None else with_remedy(error, remedy)
