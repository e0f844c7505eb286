"""A Cloche sandbox as an environment of mini-swe-agent: `environment_class: cloche_mini_swe_agent.ClocheEnvironment`."""

from __future__ import annotations

import subprocess
from typing import Any, Dict, List, Optional

import cloche
from minisweagent.exceptions import Submitted
from minisweagent.utils.serialize import recursive_merge
from pydantic import BaseModel

__all__ = ["ClocheEnvironment", "ClocheEnvironmentConfig"]

_DONE = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"


class ClocheEnvironmentConfig(BaseModel):
    cwd: str = "/root"
    env: Dict[str, str] = {}
    timeout: int = 30
    """Seconds of one command."""
    user: str = "root"
    interpreter: List[str] = ["bash", "-lc"]
    create: Dict[str, Any] = {}
    """What `cloche.create` takes: `memory_mb`, `cpus`, `egress`, …."""
    source_sandbox_id: Optional[str] = None
    """Fork this sandbox instead; with `checkpoint_id` a new machine on that checkpoint's disk."""
    checkpoint_id: Optional[str] = None


class ClocheEnvironment:
    """One machine for each environment; `cleanup` deletes it."""

    def __init__(self, *, config_class: type = ClocheEnvironmentConfig, **kwargs: Any) -> None:
        self.config = config_class(**kwargs)
        self._client = cloche.Cloche()
        self.sandbox = self._start()
        self.sandbox.wait_for("SANDBOX_STATE_RUNNING")
        names = ["system", "node", "release", "version", "machine"]
        told = self.sandbox.exec(["sh", "-c", "for flag in s n r v m; do uname -$flag; done"]).stdout
        self._uname = dict(zip(names, told.splitlines()))

    def _start(self) -> cloche.Sandbox:
        source, checkpoint = self.config.source_sandbox_id, self.config.checkpoint_id
        if source is None:
            return self._client.create(**self.config.create)
        return self._client.fork(source, **({} if checkpoint is None else {"checkpoint_id": checkpoint}))

    def execute(self, action: Dict[str, Any], cwd: str = "", *, timeout: Optional[int] = None) -> Dict[str, Any]:
        """Output and error as one text, in the order they were written."""
        seconds = timeout or self.config.timeout
        command = f"exec 2>&1\n{action.get('command', '')}"
        try:
            result = self.sandbox.exec(
                [*self.config.interpreter, command],
                dir=cwd or self.config.cwd or None,
                env=self.config.env,
                user=self.config.user,
                timeout_ms=seconds * 1000,
            )
        except cloche.ClocheError as error:
            return _failed("", error)
        if result.timed_out:
            return _failed(result.stdout, subprocess.TimeoutExpired(action.get("command", ""), seconds))
        output = {"output": result.stdout, "returncode": result.exit_code, "exception_info": ""}
        self._check_finished(output)
        return output

    def _check_finished(self, output: Dict[str, Any]) -> None:
        lines = output["output"].lstrip().splitlines(keepends=True)
        if lines and lines[0].strip() == _DONE and output["returncode"] == 0:
            submission = "".join(lines[1:])
            extra = {"exit_status": "Submitted", "submission": submission}
            raise Submitted({"role": "exit", "content": submission, "extra": extra})

    def get_template_vars(self, **kwargs: Any) -> Dict[str, Any]:
        return recursive_merge(self.config.model_dump(), self._uname, kwargs)

    def serialize(self) -> Dict[str, Any]:
        name = f"{type(self).__module__}.{type(self).__name__}"
        config = {"environment": self.config.model_dump(mode="json"), "environment_type": name}
        return {"info": {"config": config}}

    def cleanup(self) -> None:
        try:
            self.sandbox.delete()
        except cloche.NotFoundError:
            pass
        finally:
            self._client.close()


def _failed(output: str, error: Exception) -> Dict[str, Any]:
    return {
        "output": output,
        "returncode": -1,
        "exception_info": f"An error occurred while executing the command: {error}",
        "extra": {"exception_type": type(error).__name__, "exception": str(error)},
    }
