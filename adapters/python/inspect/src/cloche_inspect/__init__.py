"""Cloche sandboxes for Inspect AI: `sandbox="cloche"`. One machine for each sample, deleted after it."""

from __future__ import annotations

import errno
import os
import posixpath
from typing import AsyncIterator, Callable, Dict, List, Optional, Type, Union, overload

import cloche
from inspect_ai.util import (
    ExecResult,
    OutputLimitExceededError,
    SandboxEnvironment,
    SandboxEnvironmentConfigType,
    SandboxEnvironmentLimits,
    sandboxenv,
)
from pydantic import BaseModel
from typing_extensions import Literal, override

__all__ = ["ClocheSandboxConfig", "ClocheSandboxEnvironment"]

_PIECE = 1024 * 1024
_NOT_EXECUTABLE = 126


class ClocheSandboxConfig(BaseModel, frozen=True):
    """`sandbox=SandboxEnvironmentSpec("cloche", ClocheSandboxConfig(memory_mb=4096))`. What is left out is the service's default."""

    cpus: Optional[float] = None
    memory_mb: Optional[int] = None
    disk_mb: Optional[int] = None
    runtime: Optional[str] = None
    """`gvisor` or `qemu`."""
    network: Literal["none", "open"] = "none"
    """What a sample may reach: nothing, or every public address."""
    user: str = "user"
    """Who commands run as, and whose files are read and written; `exec(user="root")` does otherwise."""
    checkpoint_id: Optional[str] = None
    """Each sample starts on this checkpoint's disk; needs `source_sandbox_id`."""
    source_sandbox_id: Optional[str] = None


@sandboxenv(name="cloche")
class ClocheSandboxEnvironment(SandboxEnvironment):
    def __init__(self, client: cloche.AsyncCloche, sandbox: cloche.AsyncSandbox, user: str = "user") -> None:
        super().__init__()
        self.sandbox = sandbox
        self._client = client
        self._user = user
        self._directory = "/root" if user == "root" else f"/home/{user}"

    @override
    @classmethod
    async def sample_init(
        cls, task_name: str, config: Optional[SandboxEnvironmentConfigType], metadata: Dict[str, str]
    ) -> Dict[str, SandboxEnvironment]:
        chosen = config if isinstance(config, ClocheSandboxConfig) else ClocheSandboxConfig()
        client = cloche.AsyncCloche()
        try:
            sandbox = await _create(client, task_name, chosen)
        except BaseException:
            await client.aclose()
            raise
        return {"default": cls(client, sandbox, chosen.user)}

    @override
    @classmethod
    async def sample_cleanup(
        cls,
        task_name: str,
        config: Optional[SandboxEnvironmentConfigType],
        environments: Dict[str, SandboxEnvironment],
        interrupted: bool,
    ) -> None:
        for environment in environments.values():
            await environment.as_type(ClocheSandboxEnvironment).delete()

    @override
    @classmethod
    def config_deserialize(cls, config: Dict[str, object]) -> BaseModel:
        return ClocheSandboxConfig.model_validate(config)

    async def delete(self) -> None:
        try:
            await self.sandbox.delete()
        except cloche.NotFoundError:
            pass
        finally:
            await self._client.aclose()

    @override
    async def exec(
        self,
        cmd: List[str],
        input: Union[str, bytes, None] = None,
        cwd: Optional[str] = None,
        env: Optional[Dict[str, str]] = None,
        user: Optional[str] = None,
        timeout: Optional[int] = None,
        timeout_retry: bool = True,
        concurrency: bool = True,
    ) -> ExecResult[str]:
        said = _Output()
        events = self.sandbox.exec_stream_bytes(
            cmd,
            dir=self._path(cwd or ""),
            env=env,
            user=user or self._user,
            stdin=None if input is None else _pieces(input),
            timeout_ms=None if timeout is None else timeout * 1000,
        )
        try:
            async for event in events:
                if event.type != "exit":
                    said.add(event.type, event.data)
                elif event.timed_out:
                    raise TimeoutError(f"{cmd[0]} took longer than {timeout} s")
                elif event.exit_code == _NOT_EXECUTABLE:
                    raise PermissionError(errno.EACCES, said.text("stderr") or "not executable", cmd[0])
                else:
                    return ExecResult(event.ok, event.exit_code, said.text("stdout"), said.text("stderr"))
        except cloche.ClocheAPIError as error:
            if error.reason == "no_such_user":
                return ExecResult(False, 1, "", error.message)
            raise
        finally:
            await events.aclose()
        raise RuntimeError(f"{cmd[0]} did not end")

    @override
    async def write_file(self, file: str, contents: Union[str, bytes]) -> None:
        path = self._path(file)
        try:
            # A replaced file asks its directory; Inspect asks the file.
            entry = await self._stat(path)
            if entry is not None and not entry.is_dir and not await self._may("-w", path):
                raise PermissionError(errno.EACCES, "permission denied", file)
            await self.sandbox.files.upload(path, contents, as_user=self._user)
        except cloche.ClocheAPIError as error:
            raise _as_os_error(error, file) from error

    @overload
    async def read_file(self, file: str, text: Literal[True] = True) -> str: ...

    @overload
    async def read_file(self, file: str, text: Literal[False]) -> bytes: ...

    @override
    async def read_file(self, file: str, text: bool = True) -> Union[str, bytes]:
        path, limit = self._path(file), SandboxEnvironmentLimits.MAX_READ_FILE_SIZE
        try:
            entry = await self._stat(path)
            if entry is not None and entry.size > limit:
                raise OutputLimitExceededError(SandboxEnvironmentLimits.MAX_READ_FILE_SIZE_STR, None)
            content = await self.sandbox.files.read(path, as_user=self._user)
        except cloche.ClocheAPIError as error:
            raise _as_os_error(error, file) from error
        return content.decode() if text else content

    async def _stat(self, path: str) -> Optional[cloche.EntryInfo]:
        try:
            return await self.sandbox.files.stat(path, follow=True, as_user=self._user)
        except cloche.NotFoundError:
            return None

    async def _may(self, how: str, path: str) -> bool:
        return (await self.sandbox.exec(["/usr/bin/test", how, path], user=self._user)).ok

    def _path(self, path: str) -> str:
        return posixpath.join(self._directory, path)


async def _create(client: cloche.AsyncCloche, task: str, config: ClocheSandboxConfig) -> cloche.AsyncSandbox:
    machine = config.model_dump(include={"cpus", "memory_mb", "disk_mb", "runtime"}, exclude_none=True)
    if config.checkpoint_id is not None and config.source_sandbox_id is not None:
        sandbox = await client.fork(config.source_sandbox_id, checkpoint_id=config.checkpoint_id)
    else:
        sandbox = await client.create(metadata={"inspect_task": task[:100]}, egress={"mode": config.network}, **machine)
    return await sandbox.wait_for("SANDBOX_STATE_RUNNING") and sandbox


class _Output:
    """What a command wrote, each stream within Inspect's limit."""

    def __init__(self) -> None:
        self._streams: Dict[str, bytearray] = {"stdout": bytearray(), "stderr": bytearray()}

    def add(self, stream: str, data: bytes) -> None:
        kept = self._streams[stream]
        kept += data
        if len(kept) > SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE:
            raise OutputLimitExceededError(SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE_STR, self.text(stream))

    def text(self, stream: str) -> str:
        return self._streams[stream].decode("utf-8", "replace")


async def _pieces(content: Union[str, bytes]) -> AsyncIterator[bytes]:
    data = content.encode() if isinstance(content, str) else content
    for start in range(0, len(data), _PIECE):
        yield data[start : start + _PIECE]


def _as_os_error(error: cloche.ClocheAPIError, file: str) -> Exception:
    kinds: Dict[Callable[[cloche.ClocheAPIError], bool], tuple[Type[OSError], int]] = {
        lambda one: one.reason == "is_directory": (IsADirectoryError, errno.EISDIR),
        lambda one: one.reason == "not_directory": (NotADirectoryError, errno.ENOTDIR),
        lambda one: isinstance(one, cloche.NotFoundError): (FileNotFoundError, errno.ENOENT),
        lambda one: isinstance(one, cloche.PermissionDeniedError): (PermissionError, errno.EACCES),
    }
    for matches, (kind, number) in kinds.items():
        if matches(error):
            return kind(number, os.strerror(number).lower(), file)
    return error
