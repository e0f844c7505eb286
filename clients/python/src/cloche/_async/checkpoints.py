"""Checkpoints of a sandbox's whole disk."""

from __future__ import annotations

from typing import List, Optional

from .._decode import decode
from .._models import CheckpointCreated, CheckpointDeleted, CheckpointPage, CheckpointRecord, CheckpointWaited, Restored
from .._paths import compact, segment
from .data_plane import AsyncDataPlane


class AsyncCheckpoints:
    def __init__(self, data_plane: AsyncDataPlane) -> None:
        self._data_plane = data_plane

    async def create(self, name: Optional[str] = None) -> CheckpointCreated:
        """Takes a snapshot while the sandbox runs on; its upload goes on behind. `name` is generated when left out."""
        answer = await self._data_plane.json("POST", "/v1/checkpoint", json=compact(name=name))
        return decode(CheckpointCreated, answer)

    async def list(self) -> List[CheckpointRecord]:
        """All of them, newest first."""
        page = await self.page()
        found = page.checkpoints
        while page.cursor:
            page = await self.page(cursor=page.cursor)
            found.extend(page.checkpoints)
        return found

    async def page(self, *, limit: Optional[int] = None, cursor: Optional[str] = None) -> CheckpointPage:
        query = {"limit": limit, "cursor": cursor}
        return decode(CheckpointPage, await self._data_plane.json("GET", "/v1/checkpoint/list", query=query))

    async def wait(
        self, checkpoint_id: str, *, poll_interval_ms: Optional[int] = None, timeout_secs: Optional[int] = None
    ) -> CheckpointWaited:
        """Waits until a checkpoint is visible in storage, as forking from it needs.

        Defaults: `poll_interval_ms` 100, `timeout_secs` 30; then DeadlineExceededError.
        """
        json = compact(
            checkpoint_id=checkpoint_id, poll_interval_ms=poll_interval_ms, timeout_secs=timeout_secs
        )
        answer = await self._data_plane.json("POST", "/v1/checkpoint/wait", json=json, repeatable=True)
        return decode(CheckpointWaited, answer)

    async def delete(self, checkpoint_id: str) -> CheckpointDeleted:
        path = f"/v1/checkpoint/{segment('checkpoint_id', checkpoint_id)}"
        return decode(CheckpointDeleted, await self._data_plane.json("DELETE", path, repeatable=False))

    async def restore(self, checkpoint_id: str) -> Restored:
        """Rewinds the disk in place; id and token stay valid. What runs is stopped, the services of then are started."""
        answer = await self._data_plane.json("POST", "/v1/restore", json={"checkpoint_id": checkpoint_id})
        return decode(Restored, answer)
