"""The entry to Cloche."""

from __future__ import annotations

from typing import TYPE_CHECKING, AsyncGenerator, Optional

from .._clock import ServiceClock
from .._connection import find_connection
from .._requests import CreateSandbox, ForkSandbox, ListSandboxes
from ._transport import AsyncTransport
from .gateway import AsyncGateway
from .sandbox import AsyncSandbox, sandbox_with_token

if TYPE_CHECKING:
    from typing_extensions import Unpack


class AsyncCloche:
    """A client of one service, for one team. Use it in a `with` block, or close it: that ends its connections."""

    def __init__(
        self,
        url: Optional[str] = None,
        api_key: Optional[str] = None,
        *,
        ca_cert: Optional[str] = None,
        timeout: Optional[float] = None,
        wrap_store_values: bool = False,
    ) -> None:
        """`url` and `api_key` default to CLOCHE_URL and CLOCHE_API_KEY, else to the service of this machine.

        `ca_cert`: a file with the PEM of a service's own CA (CLOCHE_CA_CERT); one on this machine is found by itself. `timeout`:
        seconds of silence after which a call fails with ClocheTimeoutError; by default none, for a command may run for
        days. `wrap_store_values`: store what is no dict as `{"v": value}`. Raises ClocheConfigError naming what is missing.
        """
        connection = find_connection(url=url, api_key=api_key, ca_cert=ca_cert)
        self._clock = ServiceClock()
        self._transport = AsyncTransport(connection, timeout)
        self._wrap = wrap_store_values
        self.gateway = AsyncGateway(connection, self._transport, self._clock)
        """Every method of the gateway, plain."""

    async def __aenter__(self) -> AsyncCloche:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        await self._transport.aclose()

    async def create(self, **request: Unpack[CreateSandbox]) -> AsyncSandbox:
        """A new sandbox, RUNNING unless that took more than 10 s (then `wait_for`)."""
        answer = await self.gateway.create_sandbox(**request)
        return sandbox_with_token(
            self.gateway, self._transport, self._clock, answer, wrap_store_values=self._wrap
        )

    async def get(self, id: str) -> AsyncSandbox:
        """NotFoundError where the team has no such sandbox."""
        info = await self.gateway.get_sandbox(id)
        return AsyncSandbox(self.gateway, self._transport, self._clock, info, wrap_store_values=self._wrap)

    async def list(self, **request: Unpack[ListSandboxes]) -> AsyncGenerator[AsyncSandbox, None]:
        """All of the team's, newest first."""
        async for info in self.gateway.all_sandboxes(**request):
            yield AsyncSandbox(
                self.gateway, self._transport, self._clock, info, wrap_store_values=self._wrap
            )

    async def fork(self, source_sandbox_id: str, **request: Unpack[ForkSandbox]) -> AsyncSandbox:
        """A clone of a running sandbox; with `checkpoint_id` a new machine on that checkpoint's disk."""
        answer = await self.gateway.fork_sandbox(source_sandbox_id, **request)
        return sandbox_with_token(
            self.gateway, self._transport, self._clock, answer, wrap_store_values=self._wrap
        )
