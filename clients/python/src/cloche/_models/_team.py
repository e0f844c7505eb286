"""What belongs to the team: checkpoints, usage, the audit log, API keys."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import List

__all__ = [
    "ApiKey",
    "AuditEntry",
    "AuditPage",
    "CreatedApiKey",
    "SandboxUsage",
    "TeamCheckpoint",
    "Usage",
]


@dataclass(frozen=True)
class TeamCheckpoint:
    """A checkpoint of the team's; its sandbox may be gone."""

    id: str
    name: str
    sandbox_id: str
    created_at: str
    size_bytes: int
    size_human: str
    visible: bool
    """Durable in storage."""
    runtime: str
    automatic: bool = False
    """Taken by the service, as `checkpoint_every_seconds` says."""


@dataclass(frozen=True)
class SandboxUsage:
    """What lies within the time range, to the millisecond."""

    sandbox_id: str
    compute_seconds: float
    """Time in which it was RUNNING."""
    cpu_seconds: float
    """The same, times its cpus."""
    memory_mb_seconds: float
    """The same, times its memory_mb."""
    first_ran_at: str
    last_ran_at: str
    name: str = ""
    """The last name of a deleted sandbox; empty: counted by an older release."""
    created_by: str = ""
    """Id of the API key that made the sandbox; empty: counted by an older release."""


@dataclass(frozen=True)
class Usage:
    """Answer of GetUsage."""

    usage: List[SandboxUsage]
    """By sandbox_id; without those that did not run."""
    compute_seconds: float
    """Of all that was asked for, not of this page alone."""
    from_: str = ""
    """The contract's `from`: begin of the range that was counted; empty: from the beginning."""
    to: str = ""
    next_page_token: str = ""


@dataclass(frozen=True)
class AuditEntry:
    id: str
    at: str
    actor: str
    """An API key's id, or `system:…`."""
    action: str
    """For example `sandbox.suspend` (asked for) and `sandbox.suspend.done` (ended)."""
    subject: str
    request_id: str
    result: str
    """`ok`, or the code of the error."""
    detail: str


@dataclass(frozen=True)
class AuditPage:
    entries: List[AuditEntry]
    """Newest first."""
    next_page_token: str = ""
    """Empty: this was the last page."""


@dataclass(frozen=True)
class ApiKey:
    id: str
    name: str
    prefix: str
    """First characters of the secret, to recognise it."""
    created_at: str
    expires_at: str
    """Empty: never."""
    last_used_at: str
    """To the minute."""


@dataclass(frozen=True)
class CreatedApiKey:
    key: ApiKey
    secret: str = field(repr=False)
    """Shown this once."""
