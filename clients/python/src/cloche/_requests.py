"""Fields of the gateway's requests, in the contract's names. What is left out is the service's default."""

from __future__ import annotations

from typing import Any, Dict, List, Literal, Mapping, Type, TypedDict, Union

from ._errors import ClocheUsageError
from ._models import SandboxState


class _EgressMode(TypedDict):
    mode: str


class EgressRequest(_EgressMode, total=False):
    """`open`, `none` or `allow`; the lists only with `allow`."""

    domains: List[str]
    cidrs: List[str]


class _Timing(TypedDict, total=False):
    timeout_seconds: int
    """What then happens says `on_timeout`; 0: nothing by itself."""
    idle_suspend_seconds: int
    """0: never."""
    auto_resume: bool
    on_host_loss: Literal["error", "restart_from_checkpoint"]
    """What happens when it runs and its host is lost; default `error`, of a fork the source's."""
    checkpoint_every_seconds: int
    """While it runs, the service takes a checkpoint so often, 60 to 86,400, and keeps its newest three; 0: never."""


class _Common(_Timing, total=False):
    name: str
    """1 to 64 printable characters, not unique; generated when left out."""
    metadata: Dict[str, str]
    egress: EgressRequest


class _Made(_Common, total=False):
    idempotency_key: str
    """1 to 128 printable characters: a call that repeats it within 24 h answers the same sandbox. With it, a lost answer is asked for again."""


class CreateSandbox(_Made, total=False):
    checkpoint_id: str
    """Starts from this checkpoint of the team."""
    template: str
    env: Dict[str, str]
    """For every exec and service."""
    cpus: float
    """Default 2."""
    memory_mb: int
    """Default 1,024."""
    disk_mb: int
    """Default 8,192."""
    runtime: str
    """`gvisor` or `qemu`; default: the service's."""
    public_ports: List[Union[int, Literal["*"]]]
    """Those that need no token; `["*"]`: every port."""
    on_timeout: Literal["delete", "suspend"]
    """Default `delete`."""


class ForkSandbox(_Made, total=False):
    checkpoint_id: str
    """Starts from this checkpoint of the source instead of its running memory and disk."""


class UpdateSandbox(_Common, total=False):
    """What is left out stays; `timeout_seconds` counts from now."""

    public_ports: List[Union[int, Literal["*"]]]
    on_timeout: Literal["delete", "suspend"]


class ListSandboxes(TypedDict, total=False):
    page_size: int
    """0 or left out: all."""
    order_by: str
    """`created_at` or `name`, with a leading `-` descending; default `-created_at`."""
    name: str
    """Only names that begin with it."""
    states: List[SandboxState]
    metadata: Dict[str, str]
    """Every pair must match."""


def checked(call: str, kind: Type[Any], request: Mapping[str, object]) -> Dict[str, object]:
    """A misspelt field would be ignored by the service. None stands for what was left out."""
    known: List[str] = sorted(kind.__annotations__)
    for name in request:
        if name not in known:
            raise ClocheUsageError(f"{call} has no field {name!r}; it takes {', '.join(known)}")
    return {name: value for name, value in request.items() if value is not None}
