"""Checkpoints of a sandbox's disk."""

from __future__ import annotations

from dataclasses import dataclass
from typing import List

__all__ = [
    "CheckpointCreated",
    "CheckpointDeleted",
    "CheckpointPage",
    "CheckpointRecord",
    "CheckpointWaited",
    "Restored",
]


@dataclass(frozen=True)
class CheckpointCreated:
    checkpoint_id: str
    ok: bool
    """The snapshot is taken; its upload goes on."""
    size_bytes: int
    copy_duration_ms: int


@dataclass(frozen=True)
class CheckpointRecord:
    id: str
    name: str
    created_at: str
    size_bytes: int
    size_human: str
    visible: bool = False
    """Durable in storage."""


@dataclass(frozen=True)
class CheckpointPage:
    """One page of checkpoints, newest first."""

    checkpoints: List[CheckpointRecord]
    cursor: str = ""
    """For the next page; empty on the last."""


@dataclass(frozen=True)
class CheckpointWaited:
    visible: bool
    ok: bool
    waited_ms: int
    attempts: int


@dataclass(frozen=True)
class CheckpointDeleted:
    ok: bool
    freed_bytes: int


@dataclass(frozen=True)
class Restored:
    ok: bool
    restore_duration_ms: int
    started_services: List[str]
    stopped_services: List[str]
    """Those that ran before and do not run now."""
    failed_services: List[str]
