"""Processes that outlive the request that started them: a lost client, suspend and resume, a restart of the service."""

from __future__ import annotations

import base64
import json
from typing import AsyncGenerator, AsyncIterator, List, Literal, Mapping, Optional, Sequence, Union, cast

from .._answers import error_of, fields_of
from .._decode import decode, decode_list
from .._errors import ClocheConnectionError, ClocheError
from .._models import (
    ProcessEvent,
    ProcessExit,
    ProcessGap,
    ProcessInfo,
    ProcessOutput,
    StdinWritten,
    TerminalSize,
)
from .._paths import command, compact, segment
from .._sse import EventParser
from .attachment import AsyncAttachment
from .data_plane import AsyncDataPlane
from .stream import AsyncByteStream, AsyncStream


class AsyncProcesses:
    def __init__(self, data_plane: AsyncDataPlane) -> None:
        self._data_plane = data_plane

    async def start(
        self,
        cmd: Sequence[str],
        *,
        dir: Optional[str] = None,
        env: Optional[Mapping[str, str]] = None,
        user: Optional[str] = None,
        timeout_ms: Optional[int] = None,
        tty: Union[TerminalSize, Mapping[str, int], None] = None,
        stdin: Optional[Literal["none", "open"]] = None,
        merge_output: Optional[bool] = None,
        output_limit_bytes: Optional[int] = None,
        keep_seconds: Optional[int] = None,
        tag: Optional[str] = None,
    ) -> ProcessInfo:
        """Starts a program; one that cannot be started is an ended process with `exit_code` 126 or 127.

        `tty`: a terminal of this size. `stdin`: `open` by default with a terminal, else `none`. `merge_output`: stderr into
        stdout. `output_limit_bytes`: what is kept of each stream, the newest (1 MiB, at most 64 MiB). `keep_seconds`: how
        long it is remembered once it has ended (3,600).
        """
        size = {"cols": tty.cols, "rows": tty.rows} if isinstance(tty, TerminalSize) else tty
        fields = compact(
            cmd=command(cmd),
            dir=dir,
            env=env,
            user=user,
            timeout_ms=timeout_ms,
            tty=size,
            stdin=stdin,
            merge_output=merge_output,
            output_limit_bytes=output_limit_bytes,
            keep_seconds=keep_seconds,
            tag=tag,
        )
        return decode(ProcessInfo, await self._data_plane.json("POST", "/v1/processes", json=fields))

    async def terminal(
        self,
        cmd: Sequence[str] = ("bash", "-l"),
        *,
        cols: int = 80,
        rows: int = 24,
        dir: Optional[str] = None,
        env: Optional[Mapping[str, str]] = None,
        user: Optional[str] = None,
        timeout_ms: Optional[int] = None,
        tag: Optional[str] = None,
    ) -> ProcessInfo:
        """Starts a program on a terminal of its own; by default a login shell. `attach` speaks with it."""
        size = TerminalSize(cols, rows)
        return await self.start(cmd, dir=dir, env=env, user=user, timeout_ms=timeout_ms, tty=size, tag=tag)

    async def attach(
        self, process_id: str, *, after_stdout: int = 0, after_stderr: int = 0
    ) -> AsyncAttachment:
        """Input and output over one connection, from these bytes of output on; by default all that is kept."""
        return await AsyncAttachment.open(
            self._data_plane, f"{_path(process_id)}/attach", after_stdout, after_stderr
        )

    async def list(self, *, status: Optional[Literal["running", "exited"]] = None) -> List[ProcessInfo]:
        """Oldest first: processes, execs that run or whose client was cut off, and what services run."""
        answer = await self._data_plane.json("GET", "/v1/processes", query={"status": status})
        return decode_list(ProcessInfo, fields_of(answer).get("processes"), "processes")

    async def get(self, process_id: str) -> ProcessInfo:
        return decode(ProcessInfo, await self._data_plane.json("GET", _path(process_id)))

    async def delete(self, process_id: str) -> ProcessInfo:
        """Ends a process and all that it started, and forgets it. Its last state."""
        return decode(ProcessInfo, await self._data_plane.json("DELETE", _path(process_id), repeatable=False))

    async def signal(self, process_id: str, signal: Union[str, int]) -> ProcessInfo:
        """To the process group, on a terminal to its foreground group. FailedPreconditionError when it has ended."""
        path = f"{_path(process_id)}/signal"
        return decode(ProcessInfo, await self._data_plane.json("POST", path, json={"signal": signal}))

    async def resize(self, process_id: str, *, cols: int, rows: int) -> ProcessInfo:
        """Tells a terminal its new size."""
        path = f"{_path(process_id)}/resize"
        return decode(ProcessInfo, await self._data_plane.json("POST", path, json={"cols": cols, "rows": rows}))

    async def write_stdin(self, process_id: str, data: Union[str, bytes, AsyncIterator[bytes]]) -> StdinWritten:
        """Answers when all of it is on its way into the process, at the pace at which that reads."""
        body = data.encode() if isinstance(data, str) else data
        headers = {"content-type": "application/octet-stream"}
        answer = await self._data_plane.json("POST", f"{_path(process_id)}/stdin", headers=headers, body=body)
        return decode(StdinWritten, answer)

    async def close_stdin(self, process_id: str) -> None:
        """The process reads an end of file."""
        await self._data_plane.json("DELETE", f"{_path(process_id)}/stdin")

    async def wait(self, process_id: str, *, timeout_secs: Optional[int] = None) -> ProcessInfo:
        """Waits until it has ended; DeadlineExceededError after `timeout_secs` (30)."""
        path = f"{_path(process_id)}/wait"
        answer = await self._data_plane.json("POST", path, json=compact(timeout_secs=timeout_secs), repeatable=True)
        return decode(ProcessInfo, answer)

    async def output(
        self,
        process_id: str,
        *,
        stream: Optional[Literal["stdout", "stderr"]] = None,
        after: Optional[int] = None,
        follow: Optional[bool] = None,
    ) -> AsyncByteStream:
        """What was written to one stream (`stdout`), from the byte `after` on; `follow`: until the process ends."""
        query = {"stream": stream, "after": after, "follow": follow}
        return await self._data_plane.stream(f"{_path(process_id)}/output", query=query)

    def events(
        self,
        process_id: str,
        *,
        after_stdout: Optional[int] = None,
        after_stderr: Optional[int] = None,
        follow: bool = True,
    ) -> AsyncStream[ProcessEvent]:
        """The output of both streams as it comes, with its offsets, and at the end how the process ended.

        Leaving it does not end the process; go on later with the offsets that were seen.
        """
        return AsyncStream(self._events(process_id, after_stdout, after_stderr, follow))

    async def _events(
        self, process_id: str, after_stdout: Optional[int], after_stderr: Optional[int], follow: bool
    ) -> AsyncGenerator[ProcessEvent, None]:
        query = {"after_stdout": after_stdout, "after_stderr": after_stderr, "follow": follow}
        headers = {"accept": "text/event-stream"}
        stream = await self._data_plane.stream(f"{_path(process_id)}/output", query=query, headers=headers)
        parser = EventParser()
        try:
            async for piece in stream:
                for event, data in parser.feed(piece):
                    told = _event(event, cast(object, json.loads(data)))
                    if told is not None:
                        yield told
                    if isinstance(told, ProcessExit):
                        return
        finally:
            await stream.aclose()
        if follow:
            raise ClocheConnectionError("the connection was lost before the process ended; it runs on")


def _event(event: str, body: object) -> Optional[ProcessEvent]:
    fields = fields_of(body)
    if event == "exit":
        return ProcessExit(decode(ProcessInfo, body, "exit"))
    if event == "gap":
        return decode(ProcessGap, body, "gap")
    if event == "error":
        raise error_of(body, 200, {})
    if event in ("stdout", "stderr"):
        offset, data = fields.get("offset"), fields.get("data")
        if not isinstance(offset, int) or not isinstance(data, str):
            raise ClocheError(f"the event {event} of the service lacks its offset or data")
        return ProcessOutput("stdout" if event == "stdout" else "stderr", offset, base64.b64decode(data))
    return None


def _path(process_id: str) -> str:
    return f"/v1/processes/{segment('process_id', process_id)}"
