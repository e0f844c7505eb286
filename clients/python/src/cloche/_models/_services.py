"""Supervised background services."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Optional

__all__ = [
    "PullProgress",
    "ServiceExecResult",
    "ServiceRecord",
]


@dataclass(frozen=True)
class PullProgress:
    """How far a container's image is."""

    stage: str
    """`fetching` or `unpacking`."""
    layers_done: int
    layers_total: int
    bytes_done: int
    bytes_total: int


@dataclass(frozen=True)
class ServiceRecord:
    name: str
    cmd: str
    status: Literal["running", "stopped", "failed", "unknown"]
    pid: int
    """0 when not running."""
    container: bool
    exit_code: Optional[int] = None
    restarts: int = 0
    error: str = ""
    phase: str = ""
    """While `status` is `unknown`: `pulling`, `starting` or `backoff`."""
    pull: Optional[PullProgress] = None
    """Only while `phase` is `pulling`."""


@dataclass(frozen=True)
class ServiceExecResult:
    """How a command in a service's container ended."""

    stdout: str
    stderr: str
    exit_code: int
    timed_out: bool
    out_of_memory: bool = False
