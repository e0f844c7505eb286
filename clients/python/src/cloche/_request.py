"""A request before it is sent."""

from __future__ import annotations

import platform
from dataclasses import dataclass, field
from typing import Dict, Generic, Optional, TypeVar

from ._version import __version__

Body = TypeVar("Body")

CONNECT_SECONDS = 10.0
KEEP_ALIVE_SECONDS = 30.0
HEADERS = {
    "user-agent": f"cloche-python/{__version__} Python/{platform.python_version()}",
    # Files are answered as they are.
    "accept-encoding": "identity",
    "accept": "*/*",
}


@dataclass(frozen=True)
class Request(Generic[Body]):
    method: str
    url: str
    headers: Dict[str, str] = field(default_factory=lambda: {})
    body: Optional[Body] = None
    repeatable: bool = False
    """Repeating it does no harm: it is sent again when no answer came or the service says it is not available for now."""
    gateway: bool = False
    """For the words of the error when no answer comes."""
    target: Optional[bytes] = None
    """Sent as it stands in place of the path and query of `url`."""
