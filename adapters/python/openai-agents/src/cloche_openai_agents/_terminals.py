"""Commands that a session goes on talking to: processes of the sandbox, on a terminal or not, and what they wrote since they were asked."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Deque, Dict, List, Mapping, Optional

import cloche
from agents.sandbox.errors import PtySessionNotFoundError
from agents.sandbox.session.pty_output import collect_pty_output
from agents.sandbox.session.pty_types import (
    PTY_PROCESSES_MAX,
    PtyExecUpdate,
    allocate_pty_process_id,
    clamp_pty_yield_time_ms,
    process_id_to_prune_from_meta,
    resolve_pty_write_yield_time_ms,
)

_START_MS, _WRITE_MS = 10_000, 250
_RETRY_SECONDS, _PAUSE_SECONDS = 60.0, 0.2


@dataclass
class _Terminal:
    process_id: str
    tty: bool
    chunks: Deque[bytes] = field(default_factory=deque)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    wrote: asyncio.Event = field(default_factory=asyncio.Event)
    exit_code: Optional[int] = None
    over: bool = False
    last_used: float = field(default_factory=time.monotonic)
    follower: Optional[asyncio.Task[None]] = None


class Terminals:
    """Those of one session; they live as long as the machine, a suspend included, or until the session ends them."""

    def __init__(self) -> None:
        self._terminals: Dict[int, _Terminal] = {}

    async def start(
        self,
        sandbox: cloche.AsyncSandbox,
        cmd: List[str],
        *,
        tty: bool,
        dir: Optional[str],
        env: Mapping[str, str],
        timeout_ms: Optional[int],
        yield_time_s: Optional[float],
        max_output_tokens: Optional[int],
    ) -> PtyExecUpdate:
        processes = sandbox.processes
        if tty:
            info = await processes.terminal(cmd, dir=dir, env=env, timeout_ms=timeout_ms)
        else:
            info = await processes.start(cmd, dir=dir, env=env, timeout_ms=timeout_ms, merge_output=True)
        terminal = _Terminal(info.process_id, tty)
        terminal.follower = asyncio.create_task(_follow(processes, terminal))
        id = allocate_pty_process_id(set(self._terminals))
        await self._make_room(sandbox)
        self._terminals[id] = terminal
        milliseconds = _START_MS if yield_time_s is None else int(yield_time_s * 1000)
        return await self._told(id, terminal, clamp_pty_yield_time_ms(milliseconds), max_output_tokens)

    async def write(
        self,
        sandbox: cloche.AsyncSandbox,
        id: int,
        chars: str,
        *,
        yield_time_s: Optional[float],
        max_output_tokens: Optional[int],
    ) -> PtyExecUpdate:
        terminal = self._terminals.get(id)
        if terminal is None:
            raise PtySessionNotFoundError(session_id=id)
        if chars != "":
            if not terminal.tty:
                raise RuntimeError("stdin is not available for this process")
            try:
                await sandbox.processes.write_stdin(terminal.process_id, chars)
            except cloche.FailedPreconditionError:
                pass  # It has ended, which its update tells.
        milliseconds = _WRITE_MS if yield_time_s is None else int(yield_time_s * 1000)
        wait = resolve_pty_write_yield_time_ms(yield_time_ms=milliseconds, input_empty=chars == "")
        terminal.last_used = time.monotonic()
        return await self._told(id, terminal, wait, max_output_tokens)

    async def _told(self, id: int, terminal: _Terminal, wait_ms: int, tokens: Optional[int]) -> PtyExecUpdate:
        output, count, closed = await collect_pty_output(
            output_chunks=terminal.chunks,
            output_lock=terminal.lock,
            output_notify=terminal.wrote,
            is_done=lambda: terminal.over,
            yield_time_ms=wait_ms,
            max_output_tokens=tokens,
        )
        if closed:
            self._terminals.pop(id, None)
            return PtyExecUpdate(None, output, terminal.exit_code, count)
        return PtyExecUpdate(id, output, None, count)

    async def _make_room(self, sandbox: cloche.AsyncSandbox) -> None:
        if len(self._terminals) < PTY_PROCESSES_MAX:
            return
        id = process_id_to_prune_from_meta([(id, one.last_used, one.over) for id, one in self._terminals.items()])
        if id is not None:
            await _end(sandbox, self._terminals.pop(id))

    async def end_all(self, sandbox: cloche.AsyncSandbox) -> None:
        terminals = list(self._terminals.values())
        self._terminals.clear()
        for terminal in terminals:
            await _end(sandbox, terminal)


async def _end(sandbox: cloche.AsyncSandbox, terminal: _Terminal) -> None:
    if terminal.follower is not None:
        terminal.follower.cancel()
    try:
        await sandbox.processes.delete(terminal.process_id)
    except cloche.ClocheError:
        pass


async def _follow(processes: cloche.AsyncProcesses, terminal: _Terminal) -> None:
    """A lost connection is made again for a minute."""
    after, lost_at = 0, None
    while not terminal.over:
        try:
            async with processes.events(terminal.process_id, after_stdout=after) as events:
                async for event in events:
                    lost_at = None
                    if isinstance(event, cloche.ProcessOutput):
                        after = event.offset + len(event.data)
                        terminal.chunks.append(event.data)
                    elif isinstance(event, cloche.ProcessExit):
                        terminal.exit_code, terminal.over = event.process.exit_code, True
                    terminal.wrote.set()
        except cloche.ClocheError as error:
            lost_at = lost_at or time.monotonic()
            if isinstance(error, cloche.NotFoundError) or time.monotonic() - lost_at > _RETRY_SECONDS:
                terminal.over = True
                terminal.wrote.set()
                return
            await asyncio.sleep(_PAUSE_SECONDS)
