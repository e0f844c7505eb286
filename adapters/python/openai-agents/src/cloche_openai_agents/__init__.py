"""Cloche sandboxes for the OpenAI Agents SDK: `SandboxRunConfig(client=ClocheSandboxClient())`."""

from __future__ import annotations

import io
import uuid
from pathlib import Path
from typing import Any, Dict, List, Literal, Optional, Tuple, Union
from urllib.parse import urlsplit

import cloche
from agents.sandbox.errors import (
    ExecTimeoutError,
    ExecTransportError,
    WorkspaceArchiveReadError,
    WorkspaceArchiveWriteError,
    WorkspaceReadNotFoundError,
    WorkspaceStartError,
)
from agents.sandbox.manifest import Manifest
from agents.sandbox.session import SandboxSession, SandboxSessionState
from agents.sandbox.session.base_sandbox_session import BaseSandboxSession
from agents.sandbox.session.manager import Instrumentation
from agents.sandbox.session.pty_types import PtyExecUpdate
from agents.sandbox.session.runtime_helpers import RESOLVE_WORKSPACE_PATH_HELPER, RuntimeHelperScript
from agents.sandbox.session.sandbox_client import BaseSandboxClient, BaseSandboxClientOptions
from agents.sandbox.session.tar_workspace import shell_tar_exclude_args
from agents.sandbox.snapshot import SnapshotBase, SnapshotSpec, resolve_snapshot
from agents.sandbox.types import ExecResult, ExposedPortEndpoint, User
from agents.sandbox.util.tar_utils import UnsafeTarMemberError, validate_tar_bytes

from ._terminals import Terminals

__all__ = ["ClocheSandboxClient", "ClocheSandboxClientOptions", "ClocheSandboxSession", "ClocheSandboxSessionState"]

_SANDBOX_GONE = ""


class ClocheSandboxClientOptions(BaseSandboxClientOptions):
    """What is left out is the service's default."""

    type: Literal["cloche"] = "cloche"
    create: Dict[str, Any] = {}
    """What `cloche.create` takes: `memory_mb`, `cpus`, `egress`, …."""
    exposed_ports: Tuple[int, ...] = ()


class ClocheSandboxSessionState(SandboxSessionState):
    type: Literal["cloche"] = "cloche"
    sandbox_id: str
    create: Dict[str, Any] = {}


class ClocheSandboxSession(BaseSandboxSession):
    """Commands and files go as root; `user` goes by sudo, as the SDK has it."""

    state: ClocheSandboxSessionState

    def __init__(self, client: cloche.AsyncCloche, sandbox: cloche.AsyncSandbox, state: ClocheSandboxSessionState) -> None:
        self.state = state
        self.sandbox = sandbox
        self._client = client
        self._deleted = False
        self._terminals = Terminals()

    def _runtime_helpers(self) -> Tuple[RuntimeHelperScript, ...]:
        return (RESOLVE_WORKSPACE_PATH_HELPER,)

    def _current_runtime_helper_cache_key(self) -> object:
        return self.state.sandbox_id

    async def _validate_path_access(self, path: Union[Path, str], *, for_write: bool = False) -> Path:
        return await self._validate_remote_path_access(path, for_write=for_write)

    async def _prepare_backend_workspace(self) -> None:
        root = self._workspace_root_path()
        try:
            await self.sandbox.wait_for("SANDBOX_STATE_RUNNING")
            await self.sandbox.files.mkdir(root.as_posix(), parents=True)
        except cloche.ClocheError as error:
            raise WorkspaceStartError(path=root, cause=error) from error

    async def _exec_internal(self, *command: Union[str, Path], timeout: Optional[float] = None) -> ExecResult:
        cmd = [str(word) for word in command]
        root = self._workspace_root_path().as_posix()
        env = await self.state.manifest.environment.resolve()
        output = {"stdout": bytearray(), "stderr": bytearray()}
        limit = None if timeout is None else max(1, int(timeout * 1000))
        try:
            inside = root if self.state.workspace_root_ready else None
            async with self.sandbox.exec_stream_bytes(cmd, dir=inside, env=env, timeout_ms=limit) as events:
                async for event in events:
                    if event.type != "exit":
                        output[event.type] += event.data
                    elif event.timed_out:
                        raise ExecTimeoutError(command=cmd, timeout_s=timeout)
                    else:
                        streams = {name: bytes(data) for name, data in output.items()}
                        return ExecResult(exit_code=event.exit_code, **streams)
        except cloche.ClocheError as error:
            raise ExecTransportError(command=cmd, cause=error) from error
        raise ExecTransportError(command=cmd, message="the command did not end")

    def supports_pty(self) -> bool:
        return True

    async def pty_exec_start(
        self,
        *command: Union[str, Path],
        timeout: Optional[float] = None,
        shell: Union[bool, List[str]] = True,
        user: Union[str, User, None] = None,
        tty: bool = False,
        yield_time_s: Optional[float] = None,
        max_output_tokens: Optional[int] = None,
    ) -> PtyExecUpdate:
        cmd = [str(word) for word in self._prepare_exec_command(*command, shell=shell, user=user)]
        env = await self.state.manifest.environment.resolve()
        root = self._workspace_root_path().as_posix()
        try:
            return await self._terminals.start(
                self.sandbox,
                cmd,
                tty=tty,
                dir=root if self.state.workspace_root_ready else None,
                env=env,
                timeout_ms=None if timeout is None else max(1, int(timeout * 1000)),
                yield_time_s=yield_time_s,
                max_output_tokens=max_output_tokens,
            )
        except cloche.ClocheError as error:
            raise ExecTransportError(command=cmd, cause=error) from error

    async def pty_write_stdin(
        self,
        *,
        session_id: int,
        chars: str,
        yield_time_s: Optional[float] = None,
        max_output_tokens: Optional[int] = None,
    ) -> PtyExecUpdate:
        limits = {"yield_time_s": yield_time_s, "max_output_tokens": max_output_tokens}
        try:
            return await self._terminals.write(self.sandbox, session_id, chars, **limits)
        except cloche.ClocheError as error:
            raise ExecTransportError(command=[], cause=error) from error

    async def pty_terminate_all(self) -> None:
        await self._terminals.end_all(self.sandbox)

    async def read(self, path: Union[Path, str], *, user: Union[str, User, None] = None) -> io.IOBase:
        if user is not None:
            await self._check_read_with_exec(path, user=user)
        found = await self._validate_path_access(path)
        try:
            return io.BytesIO(await self.sandbox.files.read(found.as_posix()))
        except cloche.NotFoundError as error:
            raise WorkspaceReadNotFoundError(path=found, cause=error) from error
        except cloche.ClocheError as error:
            raise WorkspaceArchiveReadError(path=found, cause=error) from error

    async def write(self, path: Union[Path, str], data: io.IOBase, *, user: Union[str, User, None] = None) -> None:
        if user is not None:
            await self._check_write_with_exec(path, user=user)
        found = await self._validate_path_access(path, for_write=True)
        try:
            await self.sandbox.files.upload(found.as_posix(), _bytes_of(data))
        except cloche.ClocheError as error:
            raise WorkspaceArchiveWriteError(path=found, cause=error) from error

    async def running(self) -> bool:
        if self._deleted:
            return False
        try:
            return (await self.sandbox.refresh()).state == "SANDBOX_STATE_RUNNING"
        except cloche.ClocheError:
            return False

    async def persist_workspace(self) -> io.IOBase:
        root = self._workspace_root_path()
        without = " ".join(shell_tar_exclude_args(self._persist_workspace_skip_relpaths()))
        line = f'tar -C "$1" {without} -cf - .'
        result = await self._exec_internal("sh", "-c", line, "sh", root.as_posix())
        if not result.ok():
            raise WorkspaceArchiveReadError(path=root, context={"stderr": result.stderr.decode("utf-8", "replace")})
        return io.BytesIO(result.stdout)

    async def hydrate_workspace(self, data: io.IOBase) -> None:
        root = self._workspace_root_path()
        archive = _bytes_of(data)
        try:
            validate_tar_bytes(archive, allow_external_symlink_targets=False)
            await self.sandbox.files.unpack(root.as_posix(), archive)
        except (UnsafeTarMemberError, cloche.ClocheError) as error:
            raise WorkspaceArchiveWriteError(path=root, cause=error) from error

    async def _resolve_exposed_port(self, port: int) -> ExposedPortEndpoint:
        url = urlsplit(self.sandbox.port_url(port))
        return ExposedPortEndpoint(host=url.hostname or "", port=url.port or 443, tls=True)

    async def _shutdown_backend(self) -> None:
        if self._deleted:
            return
        try:
            await self.sandbox.delete()
        except cloche.NotFoundError:
            pass
        self._deleted = True

    async def _after_shutdown(self) -> None:
        await self._client.aclose()


class ClocheSandboxClient(BaseSandboxClient[Optional[ClocheSandboxClientOptions]]):
    """`url` and `api_key` default to CLOCHE_URL and CLOCHE_API_KEY, else to the service of this machine."""

    backend_id = "cloche"
    supports_default_options = True

    def __init__(
        self, url: Optional[str] = None, api_key: Optional[str] = None, *, instrumentation: Optional[Instrumentation] = None
    ) -> None:
        super().__init__()
        self._where = (url, api_key)
        self._instrumentation = instrumentation or Instrumentation()

    async def create(
        self,
        *,
        snapshot: Union[SnapshotSpec, SnapshotBase, None] = None,
        manifest: Optional[Manifest] = None,
        options: Optional[ClocheSandboxClientOptions] = None,
    ) -> SandboxSession:
        chosen = options or ClocheSandboxClientOptions()
        manifest = self._validate_manifest_for_create(manifest or Manifest())
        session_id = uuid.uuid4()
        state = ClocheSandboxSessionState(
            session_id=session_id,
            manifest=manifest,
            snapshot=resolve_snapshot(snapshot, str(session_id)),
            sandbox_id=_SANDBOX_GONE,
            create=chosen.create,
            exposed_ports=chosen.exposed_ports,
        )
        return await self._session(state)

    async def resume(self, state: SandboxSessionState) -> SandboxSession:
        """The same machine where there still is one, resumed if it was suspended; else a new one, filled from the snapshot."""
        if not isinstance(state, ClocheSandboxSessionState):
            raise TypeError("ClocheSandboxClient.resume takes a ClocheSandboxSessionState")
        state.assert_path_grants_rebound()
        return await self._session(state)

    async def delete(self, session: SandboxSession) -> SandboxSession:
        inner = session._inner
        if not isinstance(inner, ClocheSandboxSession):
            raise TypeError("ClocheSandboxClient.delete takes a session of its own")
        await inner.shutdown()
        return session

    def deserialize_session_state(self, payload: Dict[str, object]) -> SandboxSessionState:
        return self._deserialize_session_state_payload(payload, ClocheSandboxSessionState)

    async def _session(self, state: ClocheSandboxSessionState) -> SandboxSession:
        client = cloche.AsyncCloche(*self._where)
        try:
            kept = await _again(client, state.sandbox_id)
            sandbox = kept or await client.create(**state.create)
        except BaseException:
            await client.aclose()
            raise
        state.sandbox_id = sandbox.id
        if kept is None:
            state.workspace_root_ready = False
        inner = ClocheSandboxSession(client, sandbox, state)
        inner._set_start_state_preserved(kept is not None)
        return self._wrap_session(inner, instrumentation=self._instrumentation)


async def _again(client: cloche.AsyncCloche, id: str) -> Optional[cloche.AsyncSandbox]:
    """The sandbox, running; None where there is none any more."""
    if id == _SANDBOX_GONE:
        return None
    try:
        sandbox = await client.get(id)
        if sandbox.info.state == "SANDBOX_STATE_SUSPENDED":
            await sandbox.resume()
        await sandbox.wait_for("SANDBOX_STATE_RUNNING")
        return sandbox
    except (cloche.NotFoundError, cloche.ClocheWaitError):
        return None


def _bytes_of(data: io.IOBase) -> bytes:
    content: Union[str, bytes] = data.read()  # type: ignore[attr-defined]
    return content.encode() if isinstance(content, str) else content
