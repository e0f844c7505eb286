"""Processes that outlive the request that started them, and their output."""

from __future__ import annotations

from dataclasses import dataclass
from typing import List, Literal, Optional, Union

__all__ = [
    "ProcessEvent",
    "ProcessExit",
    "ProcessGap",
    "ProcessInfo",
    "ProcessOutput",
    "StdinWritten",
    "TerminalSize",
]


@dataclass(frozen=True)
class TerminalSize:
    cols: int = 80
    rows: int = 24


@dataclass(frozen=True)
class ProcessInfo:
    process_id: str
    pid: int
    """As the sandbox sees it; 0 once it has ended."""
    kind: Literal["process", "exec", "service", "container"]
    cmd: List[str]
    """The first 4,096 characters of it."""
    dir: str
    """Empty for the home directory of the user."""
    user: str
    tag: str
    status: Literal["running", "exited"]
    exit_code: Optional[int]
    """128 + signal when killed; None while it runs."""
    signal: Optional[str]
    """That ended it, such as `SIGKILL`."""
    timed_out: bool
    ended_by: Optional[str]
    """`exit`, `signal`, `timeout`, `delete`, `restore`, `machine_restart` or `out_of_memory`."""
    started_at: str
    ended_at: Optional[str]
    tty: Optional[TerminalSize]
    """None without a terminal."""
    stdin: Literal["none", "open", "closed"]
    stdout_bytes: int
    """Written so far."""
    stderr_bytes: int


@dataclass(frozen=True)
class StdinWritten:
    ok: bool
    bytes: int


@dataclass(frozen=True)
class ProcessOutput:
    """Output from `offset` on: how many bytes of this stream came before it."""

    type: Literal["stdout", "stderr"]
    offset: int
    data: bytes


@dataclass(frozen=True)
class ProcessGap:
    """These bytes of the stream are no longer kept."""

    stream: Literal["stdout", "stderr"]
    from_: int
    to: int
    type: Literal["gap"] = "gap"


@dataclass(frozen=True)
class ProcessExit:
    """The last event."""

    process: ProcessInfo
    type: Literal["exit"] = "exit"


ProcessEvent = Union[ProcessOutput, ProcessGap, ProcessExit]
