"""Sandboxes, their tokens and what they may reach, as the gateway answers them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Dict, List, Literal, Union

__all__ = [
    "DataPlaneToken",
    "Egress",
    "EgressDenial",
    "ForkedSandboxes",
    "MetricsSample",
    "PortLink",
    "SandboxEgress",
    "SandboxInfo",
    "SandboxMetrics",
    "SandboxPage",
    "SandboxState",
    "SandboxWithToken",
]


SandboxState = Literal[
    "SANDBOX_STATE_CREATING",
    "SANDBOX_STATE_RUNNING",
    "SANDBOX_STATE_SUSPENDING",
    "SANDBOX_STATE_SUSPENDED",
    "SANDBOX_STATE_RESUMING",
    "SANDBOX_STATE_DELETING",
    "SANDBOX_STATE_ERROR",
]


@dataclass(frozen=True)
class Egress:
    """What a sandbox may reach on the network; `domains` and `cidrs` only with mode `allow`."""

    mode: str
    """`open`: every public address; `none`: nothing; `allow`: what the lists name."""
    domains: List[str] = field(default_factory=lambda: [])
    """`example.org`, or `*.example.org` for every name below it; with `:443` or `:8000-8100`, else every port."""
    cidrs: List[str] = field(default_factory=lambda: [])
    """`203.0.113.0/24` or an address, IPv4; ports alike."""


@dataclass(frozen=True)
class SandboxInfo:
    """A sandbox as the gateway told of it."""

    id: str
    name: str
    state: SandboxState
    domain: str
    """Empty until it first runs, then constant; with the port where it is not 443."""
    created_at: str
    updated_at: str
    source_sandbox_id: str
    """Set where it is a fork."""
    error_message: str = ""
    """Why it is in ERROR, or why the last suspend or resume did not complete."""
    metadata: Dict[str, str] = field(default_factory=lambda: {})
    runtime: str = ""
    """`gvisor` or `qemu`."""
    cpus: float = 0
    memory_mb: int = 0
    disk_mb: int = 0
    template: str = ""
    timeout_seconds: int = 0
    """0: never deleted by itself."""
    idle_suspend_seconds: int = 0
    """0: never suspended by itself."""
    auto_resume: bool = False
    """A request wakes it."""
    expires_at: str = ""
    """When `timeout_seconds` are over; empty: never."""
    on_timeout: str = "delete"
    """What happens then: `delete` or `suspend`."""
    source_checkpoint_id: str = ""
    public_ports: List[Union[int, Literal["*"]]] = field(default_factory=lambda: [])
    """Those that need no token; `["*"]`: every port."""
    egress: Egress = field(default_factory=lambda: Egress("open"))
    durable: bool = False
    """SUSPENDED, and its memory and disk are in storage: it outlives its host. On a single machine never."""
    on_host_loss: str = "error"
    """What happens when it runs and its host is lost: `error` or `restart_from_checkpoint`."""
    checkpoint_every_seconds: int = 0
    """While it runs, the service takes a checkpoint so often; 0: never."""
    host_id: str = ""
    """In a cluster: the host that has it; empty on a single machine."""
    created_by: str = ""
    """Id of the API key that made it; empty: not known."""


@dataclass(frozen=True)
class SandboxWithToken:
    """Answer of CreateSandbox and ForkSandbox."""

    sandbox: SandboxInfo
    data_plane_token: str = field(repr=False)
    data_plane_token_expires_at_unix: int
    data_plane_url: str = ""
    """As in DataPlaneToken."""


@dataclass(frozen=True)
class ForkedSandboxes(SandboxWithToken):
    """Answer of ForkSandbox: `sandbox` is the first of `sandboxes`."""

    sandboxes: List[SandboxInfo] = field(default_factory=lambda: [])
    """All that were made."""
    data_plane_tokens: List[str] = field(default_factory=lambda: [], repr=False)
    """One for each of `sandboxes`."""


@dataclass(frozen=True)
class DataPlaneToken:
    """Answer of IssueDataPlaneToken."""

    jwt: str = field(repr=False)
    expires_at_unix: int
    """By the service's clock."""
    data_plane_url: str = ""
    """The address of all sandboxes: `<data_plane_url>/sandboxes/<id>/v1/…`. Empty: the service is older than it."""


@dataclass(frozen=True)
class SandboxPage:
    """Answer of ListSandboxes."""

    sandboxes: List[SandboxInfo]
    """Newest first."""
    next_page_token: str = ""
    """Empty: this was the last page."""


@dataclass(frozen=True)
class PortLink:
    url: str
    """Good for one use within a minute."""
    expires_at_unix: int


@dataclass(frozen=True)
class EgressDenial:
    destination: str
    """An address, or a name whose look-up was refused."""
    protocol: str
    """`tcp`, `udp` or `dns`."""
    port: int
    """0 for dns."""
    count: int
    last_at: str


@dataclass(frozen=True)
class MetricsSample:
    """What a sandbox used at one moment. Sizes in bytes."""

    at: str
    cpu_share: float
    """0 to 1: processor time since the sample before, of what its cpus could have given."""
    memory_bytes: int
    disk_bytes: int
    """Allocated, what it shares with its template or source included."""
    network_received_bytes: int
    """Since it last began to run, its data plane's calls included."""
    network_sent_bytes: int
    processes: int
    """Of its users, services and containers included."""


@dataclass(frozen=True)
class SandboxMetrics:
    """Answer of GetSandboxMetrics."""

    now: MetricsSample
    """Of a sandbox that does not run: its disk alone."""
    history: List[MetricsSample] = field(default_factory=lambda: [])
    """One each 10 s while it ran in the last hour, oldest first."""


@dataclass(frozen=True)
class SandboxEgress:
    """What a sandbox may reach, and what it was denied since it last started or resumed."""

    egress: Egress
    denied_packets: int = 0
    denied_names: int = 0
    recent_denials: List[EgressDenial] = field(default_factory=lambda: [])
    """The latest 50, latest first."""
