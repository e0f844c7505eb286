"""A sandbox of the team: its lifecycle and its data plane."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, List, Mapping, Optional, Sequence, Union

from .._clock import ServiceClock
from .._decode import decode
from .._errors import ClocheUsageError, ClocheWaitError, NotFoundError
from .._models import (
    DataPlaneToken,
    ExecBytesEvent,
    ExecEvent,
    ExecResult,
    PortLink,
    Restored,
    SandboxEgress,
    SandboxInfo,
    SandboxMetrics,
    SandboxState,
    SandboxWithToken,
)
from .._requests import ForkSandbox, UpdateSandbox
from ._concurrency import sleep
from ._transport import Transport
from .checkpoints import Checkpoints
from .data_plane import DataPlane
from .exec import Stdin, exec_bytes_events, exec_events, exec_fields, stdin_fields
from .files import Files
from .gateway import Gateway
from .processes import Processes
from .services import Services
from .store import Store
from .stream import Stream
from .token_source import TokenSource

if TYPE_CHECKING:
    from typing_extensions import Unpack

_WAIT_SECONDS = 120.0
_POLL_FIRST_SECONDS = 0.05
_POLL_MOST_SECONDS = 1.0


class Sandbox:
    """At the end of a `with` block the sandbox is deleted."""

    def __init__(
        self,
        gateway: Gateway,
        transport: Transport,
        clock: ServiceClock,
        info: SandboxInfo,
        token: Optional[DataPlaneToken] = None,
        *,
        wrap_store_values: bool = False,
    ) -> None:
        self._gateway = gateway
        self._transport = transport
        self._clock = clock
        self._info = info
        self._wrap = wrap_store_values
        self._entered_by = 0
        self._tokens = TokenSource(self._issue_token, clock, token)
        self.data_plane = DataPlane(transport, self._tokens, clock, self._base_url)
        """For routes that the client has no method for."""
        self.files = Files(self.data_plane)
        self.processes = Processes(self.data_plane)
        self.checkpoints = Checkpoints(self.data_plane)
        self.services = Services(self.data_plane)
        self.store = Store(self.data_plane, wrap_store_values)

    @property
    def id(self) -> str:
        return self._info.id

    @property
    def info(self) -> SandboxInfo:
        """As the gateway last told; `refresh` asks again."""
        return self._info

    @property
    def domain(self) -> str:
        """Empty until it first runs."""
        return self._info.domain

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} {self._info.name!r} {self._info.state}>"

    def __enter__(self) -> Sandbox:
        self._entered_by = os.getpid()
        return self

    def __exit__(self, *_: object) -> None:
        if self._entered_by != os.getpid():
            return  # A child made by fork in the block: the sandbox is its parent's.
        try:
            self.delete()
        except NotFoundError:
            pass  # Deleted in the block, or by its timeout.

    def exec(
        self,
        cmd: Sequence[str],
        *,
        dir: Optional[str] = None,
        env: Optional[Mapping[str, str]] = None,
        stdin: Union[str, bytes, None] = None,
        timeout_ms: Optional[int] = None,
        user: Optional[str] = None,
    ) -> ExecResult:
        """Runs a command and answers when it has ended. No shell: `cmd` is a program and its arguments.

        An `exit_code` other than 0 is an answer, not an error. No time limit unless `timeout_ms` is given. By default as
        root in /root. Never sent again after a lost connection: the command may have run.
        """
        json = {**exec_fields(cmd, dir, env, timeout_ms, user), **stdin_fields(stdin)}
        return decode(ExecResult, self.data_plane.json("POST", "/v1/exec", json=json))

    def exec_stream(
        self,
        cmd: Sequence[str],
        *,
        dir: Optional[str] = None,
        env: Optional[Mapping[str, str]] = None,
        stdin: Union[str, bytes, None] = None,
        timeout_ms: Optional[int] = None,
        user: Optional[str] = None,
    ) -> Stream[ExecEvent]:
        """Runs a command and yields its output as it comes, at the end one ExecExit. Closing it early kills the command."""
        fields = {**exec_fields(cmd, dir, env, timeout_ms, user), **stdin_fields(stdin)}
        return Stream(exec_events(self.data_plane, fields))

    def exec_stream_bytes(
        self,
        cmd: Sequence[str],
        *,
        dir: Optional[str] = None,
        env: Optional[Mapping[str, str]] = None,
        stdin: Optional[Stdin] = None,
        timeout_ms: Optional[int] = None,
        user: Optional[str] = None,
    ) -> Stream[ExecBytesEvent]:
        """As `exec_stream`, with input and output as bytes.

        `stdin` may come piece by piece while the command runs; the command's end does not wait for it.
        """
        fields = exec_fields(cmd, dir, env, timeout_ms, user)
        return Stream(exec_bytes_events(self.data_plane, fields, stdin))

    def restore(self, checkpoint_id: str) -> Restored:
        """Rewinds the sandbox to a checkpoint, in place."""
        return self.checkpoints.restore(checkpoint_id)

    def refresh(self) -> SandboxInfo:
        self._info = self._gateway.get_sandbox(self.id)
        return self._info

    def token(self) -> str:
        """A data plane token that is good for at least 30 seconds."""
        return self._tokens.get()

    def suspend(
        self, *, memory: Optional[bool] = None, wait_durable: Optional[bool] = None
    ) -> SandboxInfo:
        """Freezes it. Answers at once; `wait_for("SANDBOX_STATE_SUSPENDED")` waits.

        `memory=False` keeps the disk alone: the resume starts cold, with the services that ran. `wait_durable=True` answers
        when it is durable, or after 60 s as it then is; refused on a single machine.
        """
        self._info = self._gateway.suspend_sandbox(
            self.id, memory=memory, wait_durable=wait_durable
        )
        return self._info

    def resume(self) -> SandboxInfo:
        """Answers at once; `wait_for("SANDBOX_STATE_RUNNING")` waits."""
        self._info = self._gateway.resume_sandbox(self.id)
        return self._info

    def fork(self, **request: Unpack[ForkSandbox]) -> Sandbox:
        """A clone of the running machine; with `checkpoint_id` a new machine on that checkpoint's disk."""
        answer = self._gateway.fork_sandbox(self.id, **request)
        return sandbox_with_token(
            self._gateway, self._transport, self._clock, answer, wrap_store_values=self._wrap
        )

    def fork_many(self, count: int, **request: Unpack[ForkSandbox]) -> List[Sandbox]:
        """`count` (1 to 100) clones of one instant: all of them, or none. With a `name`: `name-1`, `name-2`, …"""
        answer = self._gateway.fork_sandbox(self.id, count=count, **request)
        expires = answer.data_plane_token_expires_at_unix
        return [
            sandbox_with_token(
                self._gateway,
                self._transport,
                self._clock,
                SandboxWithToken(info, jwt, expires),
                wrap_store_values=self._wrap,
            )
            for info, jwt in zip(answer.sandboxes, answer.data_plane_tokens)
        ]

    def update(self, **request: Unpack[UpdateSandbox]) -> SandboxInfo:
        """What is left out stays."""
        self._info = self._gateway.update_sandbox(self.id, **request)
        return self._info

    def delete(self) -> None:
        """Answers once the deletion is durable."""
        self._gateway.delete_sandbox(self.id)

    def wait_for(self, *states: SandboxState, timeout: float = _WAIT_SECONDS) -> SandboxInfo:
        """Polls until the sandbox is in one of `states`, for up to `timeout` seconds.

        ClocheWaitError when time is up, when it is in ERROR or gone, or when a suspend or resume fell back.
        """
        end = time.monotonic() + timeout
        before = self._info.state
        pause = _POLL_FIRST_SECONDS
        while True:
            try:
                info = self.refresh()
            except NotFoundError as error:
                raise ClocheWaitError(f"sandbox {self.id} was deleted") from error
            if info.state in states:
                return info
            fell_back = before in _PASSING and info.state in _AT_REST
            if info.state == "SANDBOX_STATE_ERROR" or fell_back:
                raise self._stuck(states)
            if time.monotonic() + pause > end:
                raise self._stuck(states, f" after {timeout:g} s")
            sleep(pause)
            pause = min(pause * 1.5, _POLL_MOST_SECONDS)

    def wait_until_deleted(self, *, timeout: float = _WAIT_SECONDS) -> None:
        """Waits until the sandbox is deleted for good."""
        end = time.monotonic() + timeout
        pause = _POLL_FIRST_SECONDS
        while True:
            try:
                self.refresh()
            except NotFoundError:
                return
            if time.monotonic() + pause > end:
                raise ClocheWaitError(f"sandbox {self.id} is still there after {timeout:g} s")
            sleep(pause)
            pause = min(pause * 1.5, _POLL_MOST_SECONDS)

    def port_url(self, port: int) -> str:
        """Where a server on `port` in the sandbox is reached, with the sandbox's token or, where it is public, without."""
        if not self.domain:
            raise ClocheUsageError("the sandbox has no domain until it first runs")
        return f"https://{port}-{self.domain}"

    def port_link(self, port: int, *, path: Optional[str] = None) -> PortLink:
        """A link that opens the port in a browser, good for one use within a minute."""
        return self._gateway.issue_port_link(self.id, port, path=path)

    def egress(self) -> SandboxEgress:
        """What it may reach on the network, and what it was denied since it last started; `update(egress=…)` changes it."""
        return self._gateway.get_sandbox_egress(self.id)

    def metrics(self) -> SandboxMetrics:
        """What it uses now, and used in the last hour. Wakes nothing."""
        return self._gateway.get_sandbox_metrics(self.id)

    def _issue_token(self) -> DataPlaneToken:
        return self._gateway.issue_data_plane_token(self.id)

    def _base_url(self) -> str:
        if not self.domain:
            self.refresh()
        if not self.domain:
            self.wait_for("SANDBOX_STATE_RUNNING")
        token = self._tokens.latest
        if token is not None and self._gateway.connection.plain_address(token.data_plane_url):
            return f"{token.data_plane_url}/sandboxes/{self.id}"
        return f"https://{self.domain}"

    def _stuck(self, wanted: Sequence[SandboxState], when: str = "") -> ClocheWaitError:
        why = f": {self._info.error_message}" if self._info.error_message else ""
        return ClocheWaitError(f"sandbox {self.id} is {self._info.state}{when}, not {' or '.join(wanted)}{why}")


_AT_REST = ("SANDBOX_STATE_RUNNING", "SANDBOX_STATE_SUSPENDED")
_PASSING = ("SANDBOX_STATE_CREATING", "SANDBOX_STATE_SUSPENDING", "SANDBOX_STATE_RESUMING", "SANDBOX_STATE_DELETING")


def sandbox_with_token(
    gateway: Gateway,
    transport: Transport,
    clock: ServiceClock,
    answer: SandboxWithToken,
    *,
    wrap_store_values: bool,
) -> Sandbox:
    """Of the answer of CreateSandbox or ForkSandbox."""
    jwt = answer.data_plane_token
    expires = answer.data_plane_token_expires_at_unix
    token = DataPlaneToken(jwt, expires, answer.data_plane_url) if jwt else None
    return Sandbox(gateway, transport, clock, answer.sandbox, token, wrap_store_values=wrap_store_values)
