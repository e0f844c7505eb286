"""A bash on a terminal of the sandbox, as `pexpect.spawn` is one on a terminal of this machine."""

from __future__ import annotations

import threading
import time
from queue import Empty, Queue
from typing import Any, Mapping, Optional

import cloche
from pexpect import EOF, TIMEOUT
from pexpect.spawnbase import SpawnBase

_RETRY_SECONDS = 60.0
_PAUSE_SECONDS = 0.2
_START_SECONDS = 30.0
_READY = "terminal-without-echo"


class SandboxShell(SpawnBase):
    """What SWE-ReX calls of a `pexpect.spawn`. The bash lives in the sandbox: a lost connection is made again for a minute."""

    def __init__(self, sandbox: cloche.Sandbox, user: str, env: Mapping[str, str]) -> None:
        super().__init__(encoding="utf-8", codec_errors="backslashreplace")
        self._processes = sandbox.processes
        self._kept = ""
        self._pieces: Queue[Optional[bytes]] = Queue()
        self._over = threading.Event()
        # Without TERM, as SWE-ReX expects the output: readline and pagers write none of their own.
        cmd = ["sh", "-c", f"unset TERM; stty -echo; echo {_READY}; exec /usr/bin/env bash"]
        self._id = self._processes.terminal(cmd, env=env, user=user).process_id
        self._attachment = self._processes.attach(self._id)
        self.closed = self.terminated = False
        threading.Thread(target=self._follow, daemon=True).start()
        # What is sent earlier is echoed.
        self.expect_exact(f"{_READY}\r\n", timeout=_START_SECONDS)

    def _follow(self) -> None:
        while True:
            try:
                for event in self._attachment:
                    if isinstance(event, cloche.ProcessOutput):
                        self._pieces.put(event.data)
                    elif isinstance(event, cloche.ProcessExit):
                        self._pieces.put(None)
                        return
            except cloche.ClocheError:
                pass
            if not self._attached_again():
                self._pieces.put(None)
                return

    def _attached_again(self) -> bool:
        after = self._attachment.offsets["stdout"]
        end = time.monotonic() + _RETRY_SECONDS
        while not self._over.wait(_PAUSE_SECONDS) and time.monotonic() < end:
            try:
                self._attachment = self._processes.attach(self._id, after_stdout=after)
                return True
            except cloche.NotFoundError:
                return False
            except cloche.ClocheError:
                pass
        return False

    def read_nonblocking(self, size: int = 1, timeout: Optional[float] = -1) -> str:
        if self._kept == "" and not self.flag_eof:
            self._kept = self._next(self.timeout if timeout == -1 else timeout)
        if self._kept == "":
            raise EOF("the shell has ended")
        text, self._kept = self._kept[:size], self._kept[size:]
        self._log(text, "read")
        return text

    def _next(self, timeout: Optional[float]) -> str:
        try:
            piece = self._pieces.get(timeout=timeout)
        except Empty:
            raise TIMEOUT("the shell wrote nothing in time") from None
        self.flag_eof = piece is None
        text: str = self._decoder.decode(piece or b"", final=piece is None)
        return text if text != "" or piece is None else self._next(timeout)

    def send(self, text: str) -> int:
        self._log(text, "send")
        # By a request of its own, which does not get lost where the connection is.
        return self._processes.write_stdin(self._id, text).bytes

    def sendline(self, text: str = "") -> int:
        return self.send(f"{text}\n")

    def sendcontrol(self, char: str) -> int:
        """`z` is Control-Z."""
        return self.send(chr(ord(char.upper()) - 64))

    def sendintr(self) -> None:
        self.sendcontrol("c")

    def setecho(self, state: bool) -> None:
        """SWE-ReX says it inside the terminal, by stty, as well."""

    def waitnoecho(self, timeout: Any = -1) -> bool:
        return True

    def close(self, force: bool = True) -> None:
        """Ends the bash and all that it started."""
        if self.closed:
            return
        self.closed = self.terminated = True
        self._over.set()
        self._attachment.close()
        try:
            self._processes.delete(self._id)
        except cloche.ClocheError:
            pass
