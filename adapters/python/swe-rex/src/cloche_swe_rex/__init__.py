"""Cloche sandboxes as a deployment of SWE-ReX: `ClocheDeploymentConfig(create={"memory_mb": 2048}).get_deployment()`."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Dict, Literal, Optional

import cloche
from pydantic import BaseModel, ConfigDict
from swerex.deployment.abstract import AbstractDeployment
from swerex.deployment.hooks.abstract import CombinedDeploymentHook, DeploymentHook
from swerex.exceptions import DeploymentNotStartedError
from swerex.runtime.abstract import IsAliveResponse
from swerex.utils.log import get_logger

from ._runtime import ClocheRuntime

__all__ = ["ClocheDeployment", "ClocheDeploymentConfig", "ClocheRuntime"]


class ClocheDeploymentConfig(BaseModel):
    type: Literal["cloche"] = "cloche"
    create: Dict[str, Any] = {}
    """What `cloche.create` takes: `memory_mb`, `cpus`, `egress`, …."""
    source_sandbox_id: Optional[str] = None
    """Fork this sandbox instead; with `checkpoint_id` a new machine on that checkpoint's disk."""
    checkpoint_id: Optional[str] = None
    user: str = "root"
    """The Unix user of commands, sessions and files."""

    model_config = ConfigDict(extra="forbid")

    def get_deployment(self) -> ClocheDeployment:
        return ClocheDeployment.from_config(self)


class ClocheDeployment(AbstractDeployment):
    """One machine for each deployment; `stop` deletes it. Nothing of SWE-ReX is installed in it."""

    def __init__(self, *, logger: Optional[logging.Logger] = None, **kwargs: Any) -> None:
        self._config = ClocheDeploymentConfig(**kwargs)
        self.logger = logger or get_logger("rex-deploy")
        self._hooks = CombinedDeploymentHook()
        self._client: Optional[cloche.Cloche] = None
        self._runtime: Optional[ClocheRuntime] = None

    @classmethod
    def from_config(cls, config: ClocheDeploymentConfig) -> ClocheDeployment:
        return cls(**config.model_dump())

    def add_hook(self, hook: DeploymentHook) -> None:
        self._hooks.add_hook(hook)

    @property
    def runtime(self) -> ClocheRuntime:
        if self._runtime is None:
            raise DeploymentNotStartedError()
        return self._runtime

    async def is_alive(self, *, timeout: Optional[float] = None) -> IsAliveResponse:
        return await self.runtime.is_alive(timeout=timeout)

    async def start(self) -> None:
        if self._runtime is None:
            self._hooks.on_custom_step("Starting the sandbox")
            self._runtime = await asyncio.to_thread(self._started)

    def _started(self) -> ClocheRuntime:
        client = cloche.Cloche()
        try:
            source, checkpoint = self._config.source_sandbox_id, self._config.checkpoint_id
            if source is None:
                sandbox = client.create(**self._config.create)
            else:
                sandbox = client.fork(source, **({} if checkpoint is None else {"checkpoint_id": checkpoint}))
            sandbox.wait_for("SANDBOX_STATE_RUNNING")
        except BaseException:
            client.close()
            raise
        self._client = client
        return ClocheRuntime(sandbox, user=self._config.user)

    async def stop(self) -> None:
        runtime, client = self._runtime, self._client
        self._runtime = self._client = None
        if runtime is None or client is None:
            return
        await runtime.close()
        try:
            await asyncio.to_thread(runtime.sandbox.delete)
        except cloche.NotFoundError:
            pass
        finally:
            client.close()

    def __del__(self) -> None:
        """Deletes the machine, without a word: of a deployment that was stopped there is none."""
        runtime, client = getattr(self, "_runtime", None), getattr(self, "_client", None)
        if runtime is None or client is None:
            return
        try:
            runtime.sandbox.delete()
        except cloche.ClocheError:
            pass
        finally:
            client.close()
