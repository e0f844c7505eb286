"""The token of one sandbox, renewed 30 seconds before it expires by the service's clock. Many callers share one renewal."""

from __future__ import annotations

from typing import Awaitable, Callable, Optional

from .._clock import ServiceClock
from .._errors import ClocheError
from .._models import DataPlaneToken
from ._concurrency import AsyncLock

_MARGIN_SECONDS = 30

IssueToken = Callable[[], Awaitable[DataPlaneToken]]


class AsyncTokenSource:
    def __init__(self, issue: IssueToken, clock: ServiceClock, token: Optional[DataPlaneToken] = None) -> None:
        self._issue = issue
        self._clock = clock
        self._token = token
        self._lock = AsyncLock()

    @property
    def latest(self) -> Optional[DataPlaneToken]:
        """What `get` last answered of."""
        return self._token

    async def get(self) -> str:
        """A token that is good for a while. Where a renewal fails, one that is still good goes on being used."""
        token = self._token
        if token is not None and self._seconds_left(token) > _MARGIN_SECONDS:
            return token.jwt
        try:
            return await self.replace(None if token is None else token.jwt)
        except ClocheError:
            if token is not None and self._seconds_left(token) > 0:
                return token.jwt
            raise

    async def replace(self, refused: Optional[str]) -> str:
        """A token other than the one that was refused."""
        async with self._lock:
            if self._token is None or self._token.jwt == refused:
                self._token = await self._issue()
            return self._token.jwt

    def _seconds_left(self, token: DataPlaneToken) -> float:
        return token.expires_at_unix - self._clock.now()
