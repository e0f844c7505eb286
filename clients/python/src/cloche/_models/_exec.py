"""How a command ended, and its output as it comes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Union

__all__ = [
    "ExecBytes",
    "ExecBytesEvent",
    "ExecEvent",
    "ExecExit",
    "ExecOutput",
    "ExecResult",
]


@dataclass(frozen=True)
class ExecResult:
    stdout: str
    """Up to 16 MiB; bytes that are no UTF-8 are U+FFFD."""
    stderr: str
    exit_code: int
    """127: no such program; 126: not executable; 128 + its number: killed by a signal; 137: timed out."""
    ok: bool
    """`exit_code == 0 and not timed_out`."""
    duration_ms: int
    timed_out: bool
    out_of_memory: bool = False
    """One of its processes was killed because the sandbox's memory was used up."""
    stdout_truncated: bool = False
    stderr_truncated: bool = False


@dataclass(frozen=True)
class ExecOutput:
    type: Literal["stdout", "stderr"]
    data: str


@dataclass(frozen=True)
class ExecBytes:
    type: Literal["stdout", "stderr"]
    data: bytes


@dataclass(frozen=True)
class ExecExit:
    """The last event: how the command ended."""

    exit_code: int
    ok: bool
    duration_ms: int
    timed_out: bool
    out_of_memory: bool = False
    type: Literal["exit"] = "exit"


ExecEvent = Union[ExecOutput, ExecExit]
ExecBytesEvent = Union[ExecBytes, ExecExit]
