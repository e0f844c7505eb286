"""SWE-ReX's runtime on a sandbox: sessions are SWE-ReX's own, on terminals of the sandbox; commands and files are its calls."""

from __future__ import annotations

import asyncio
import io
import os
import posixpath
import tarfile
import tempfile
import threading
from pathlib import Path
from typing import Any, Dict, Iterator, List

import cloche
from swerex.exceptions import (
    CommandTimeoutError,
    NonZeroExitCodeError,
    SessionDoesNotExistError,
    SessionExistsError,
)
from swerex.runtime.abstract import (
    AbstractRuntime,
    Action,
    CloseBashSessionResponse,
    CloseResponse,
    CloseSessionRequest,
    CloseSessionResponse,
    Command,
    CommandResponse,
    CreateBashSessionRequest,
    CreateBashSessionResponse,
    CreateSessionRequest,
    CreateSessionResponse,
    IsAliveResponse,
    Observation,
    ReadFileRequest,
    ReadFileResponse,
    UploadRequest,
    UploadResponse,
    WriteFileRequest,
    WriteFileResponse,
)
from swerex.runtime.local import BashSession, _strip_control_chars
from swerex.utils.log import get_logger

from ._shell import SandboxShell

_PIECE_BYTES = 1_048_576


class ClocheSession(BashSession):
    """SWE-ReX's session with a bash that runs in the sandbox. Its calls block, so each goes in a thread, one after another."""

    def __init__(self, request: CreateBashSessionRequest, sandbox: cloche.Sandbox, user: str) -> None:
        super().__init__(request)
        self._where = (sandbox, user)
        self._turn = threading.Lock()

    async def start(self) -> CreateBashSessionResponse:
        sandbox, user = self._where
        env = {"PS1": self._ps1, "PS2": "", "PS0": ""}
        self._shell = SandboxShell(sandbox, user, env)  # type: ignore[assignment]
        sources = [f"source {path}" for path in self.request.startup_source]
        self.shell.sendline(" ; ".join([*sources, *self._get_reset_commands(), "echo 'STARTED''HERE'"]))
        # Before that there are prompts of every kind.
        self.shell.expect_exact("STARTEDHERE\r\n", timeout=self.request.startup_timeout)
        output = _strip_control_chars(self.shell.before)
        self.shell.expect_exact(self._ps1, timeout=self.request.startup_timeout)
        return CreateBashSessionResponse(output=output)

    async def in_turn(self, action: Action) -> Observation:
        return await asyncio.to_thread(self._run_blocking, action)

    def _run_blocking(self, action: Action) -> Observation:
        with self._turn:
            return asyncio.run(self.run(action))


class ClocheRuntime(AbstractRuntime):
    """`sandbox` is the machine itself, for forks, checkpoints and what else SWE-ReX does not know."""

    def __init__(self, sandbox: cloche.Sandbox, *, user: str = "root") -> None:
        self.sandbox = sandbox
        self.logger = get_logger("rex-runtime")
        self._user = user
        self._sessions: Dict[str, ClocheSession] = {}

    async def is_alive(self, *, timeout: float | None = None) -> IsAliveResponse:
        try:
            state = (await asyncio.wait_for(asyncio.to_thread(self.sandbox.refresh), timeout)).state
        except (cloche.ClocheError, asyncio.TimeoutError) as error:
            return IsAliveResponse(is_alive=False, message=str(error) or "no answer in time")
        return IsAliveResponse(is_alive=state == "SANDBOX_STATE_RUNNING", message=f"the sandbox is {state}")

    async def create_session(self, request: CreateSessionRequest) -> CreateSessionResponse:
        if request.session in self._sessions:
            raise SessionExistsError(f"session {request.session} already exists")
        session = ClocheSession(request, self.sandbox, self._user)
        self._sessions[request.session] = session
        try:
            return await asyncio.to_thread(asyncio.run, session.start())
        except BaseException:
            del self._sessions[request.session]
            await session.close()
            raise

    def _session(self, name: str) -> ClocheSession:
        if name not in self._sessions:
            raise SessionDoesNotExistError(f"session {name!r} does not exist")
        return self._sessions[name]

    async def run_in_session(self, action: Action) -> Observation:
        return await self._session(action.session).in_turn(action)

    async def close_session(self, request: CloseSessionRequest) -> CloseSessionResponse:
        session = self._session(request.session)
        del self._sessions[request.session]
        await asyncio.to_thread(asyncio.run, session.close())
        return CloseBashSessionResponse()

    async def execute(self, command: Command) -> CommandResponse:
        """`env` is added to the sandbox's own variables. A program that is not there is exit code 127."""
        result = await asyncio.to_thread(self._execute, command)
        if command.check and result.exit_code != 0:
            told = f"Command {command.command!r} failed with exit code {result.exit_code}. "
            told += f"Stdout:\n{result.stdout!r}\nStderr:\n{result.stderr!r}"
            raise NonZeroExitCodeError(f"{command.error_msg}: {told}" if command.error_msg else told)
        return result

    def _execute(self, command: Command) -> CommandResponse:
        words = [command.command] if isinstance(command.command, str) else command.command
        cmd = ["sh", "-c", *words] if command.shell else words
        if command.merge_output_streams:
            cmd = ["sh", "-c", 'exec "$@" 2>&1', "sh", *cmd]
        limit = None if command.timeout is None else max(1, int(command.timeout * 1000))
        how: Dict[str, Any] = {"dir": command.cwd, "env": command.env, "timeout_ms": limit, "user": self._user}
        output = {"stdout": bytearray(), "stderr": bytearray()}
        with self.sandbox.exec_stream_bytes(cmd, **how) as events:
            for event in events:
                if event.type != "exit":
                    output[event.type] += event.data
                elif event.timed_out:
                    raise CommandTimeoutError(f"Timeout ({command.timeout}s) exceeded while running command")
                else:
                    texts = {name: data.decode(errors="backslashreplace") for name, data in output.items()}
                    return CommandResponse(exit_code=event.exit_code, **texts)
        raise cloche.ClocheError("the command did not end")

    def _at(self, path: str) -> str:
        return posixpath.join("/root" if self._user == "root" else f"/home/{self._user}", path)

    async def read_file(self, request: ReadFileRequest) -> ReadFileResponse:
        try:
            data = await asyncio.to_thread(self.sandbox.files.read, self._at(request.path), as_user=self._user)
        except cloche.NotFoundError as error:
            raise FileNotFoundError(str(error)) from error
        text = io.TextIOWrapper(io.BytesIO(data), encoding=request.encoding or "utf-8", errors=request.errors)
        return ReadFileResponse(content=text.read())

    async def write_file(self, request: WriteFileRequest) -> WriteFileResponse:
        await self._upload(request.path, request.content.encode())
        return WriteFileResponse()

    async def upload(self, request: UploadRequest) -> UploadResponse:
        """A file, or a directory with all in it."""
        source = Path(request.source_path)
        if source.is_dir():
            await asyncio.to_thread(self._upload_directory, source, request.target_path)
        else:
            await self._upload(request.target_path, _pieces(source))
        return UploadResponse()

    async def _upload(self, path: str, content: bytes | Iterator[bytes]) -> None:
        await asyncio.to_thread(self.sandbox.files.upload, self._at(path), content, as_user=self._user)

    def _upload_directory(self, source: Path, target: str) -> None:
        with tempfile.TemporaryDirectory() as folder:
            archive = os.path.join(folder, "archive.tar")
            with tarfile.open(archive, "w") as tar:
                tar.add(source, ".")
            self.sandbox.files.unpack(self._at(target), _pieces(Path(archive)), as_user=self._user)

    async def close(self) -> CloseResponse:
        names: List[str] = list(self._sessions)
        for name in names:
            await asyncio.to_thread(asyncio.run, self._sessions.pop(name).close())
        return CloseResponse()


def _pieces(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while piece := file.read(_PIECE_BYTES):
            yield piece
