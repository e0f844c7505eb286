"""The gateway's methods, one each, in the contract's field names. Belongs on a team's backend: it holds the API key.

Calls that read, and those that are safe to repeat, are sent again when no answer came; creating ones only with an
`idempotency_key`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, AsyncGenerator, Dict, List, Optional, cast

from .._answers import json_of, with_remedy
from .._clock import ServiceClock
from .._connection import Connection
from .._decode import decode, decode_list
from .._errors import ClocheError, UnauthenticatedError
from .._models import (
    ApiKey,
    AuditPage,
    CreatedApiKey,
    DataPlaneToken,
    ForkedSandboxes,
    PortLink,
    SandboxEgress,
    SandboxInfo,
    SandboxMetrics,
    SandboxPage,
    SandboxWithToken,
    TeamCheckpoint,
    Usage,
)
from .._paths import compact, json_body
from .._request import Request
from .._requests import CreateSandbox, ForkSandbox, ListSandboxes, UpdateSandbox, checked
from ._transport import AsyncBody, AsyncTransport

if TYPE_CHECKING:
    from typing_extensions import Unpack

_SANDBOXES = "cloche.public.v1.SandboxService"
_API_KEYS = "cloche.public.v1.ApiKeyService"
_PAGE_SIZE = 200


class AsyncGateway:
    def __init__(self, connection: Connection, transport: AsyncTransport, clock: ServiceClock) -> None:
        self.connection = connection
        self._transport = transport
        self._clock = clock

    async def create_sandbox(self, **request: Unpack[CreateSandbox]) -> SandboxWithToken:
        """Answers when it is RUNNING, or after 10 s in the state it then has."""
        message = checked("create_sandbox", CreateSandbox, request)
        return decode(SandboxWithToken, await self._make("CreateSandbox", message))

    async def get_sandbox(self, id: str) -> SandboxInfo:
        return _sandbox(await self.call("GetSandbox", {"id": id}, repeatable=True))

    async def list_sandboxes(
        self, *, page_token: Optional[str] = None, **request: Unpack[ListSandboxes]
    ) -> SandboxPage:
        message = {**checked("list_sandboxes", ListSandboxes, request), **compact(page_token=page_token)}
        return decode(SandboxPage, await self.call("ListSandboxes", message, repeatable=True))

    async def all_sandboxes(self, **request: Unpack[ListSandboxes]) -> AsyncGenerator[SandboxInfo, None]:
        """Every sandbox, page after page, newest first."""
        request.setdefault("page_size", _PAGE_SIZE)
        token: Optional[str] = None
        while True:
            page = await self.list_sandboxes(page_token=token, **request)
            for info in page.sandboxes:
                yield info
            if not page.next_page_token:
                return
            token = page.next_page_token

    async def delete_sandbox(self, id: str) -> None:
        """Answers once the deletion is durable. Its checkpoints stay."""
        await self.call("DeleteSandbox", {"id": id})

    async def suspend_sandbox(
        self, id: str, *, memory: Optional[bool] = None, wait_durable: Optional[bool] = None
    ) -> SandboxInfo:
        """Answers at once with SUSPENDING; see `Sandbox.wait_for`. `memory=False` keeps the disk alone: it resumes cold.

        `wait_durable=True` answers when it is durable, or after 60 s as it then is; refused on a single machine.
        """
        message = compact(id=id, memory=memory, wait_durable=wait_durable)
        return _sandbox(await self.call("SuspendSandbox", message, repeatable=True))

    async def resume_sandbox(self, id: str) -> SandboxInfo:
        """Answers at once with RESUMING; see `Sandbox.wait_for`."""
        return _sandbox(await self.call("ResumeSandbox", {"id": id}, repeatable=True))

    async def fork_sandbox(
        self, source_sandbox_id: str, *, count: Optional[int] = None, **request: Unpack[ForkSandbox]
    ) -> ForkedSandboxes:
        """A clone of the running machine; with `checkpoint_id` a new machine on that checkpoint's disk.

        `count` (1 to 100, default 1): so many clones of one instant, all or none.
        """
        message = {
            **compact(source_sandbox_id=source_sandbox_id, count=count),
            **checked("fork_sandbox", ForkSandbox, request),
        }
        return decode(ForkedSandboxes, await self._make("ForkSandbox", message))

    async def issue_data_plane_token(self, sandbox_id: str) -> DataPlaneToken:
        message: Dict[str, object] = {"sandbox_id": sandbox_id}
        return decode(DataPlaneToken, await self.call("IssueDataPlaneToken", message, repeatable=True))

    async def update_sandbox(self, id: str, **request: Unpack[UpdateSandbox]) -> SandboxInfo:
        """What is left out stays. `timeout_seconds` counts from now."""
        message = {"id": id, **checked("update_sandbox", UpdateSandbox, request)}
        if "metadata" in message:
            message["metadata"] = {"entries": message["metadata"]}
        if "public_ports" in message:
            message["public_ports"] = {"ports": message["public_ports"]}
        return _sandbox(await self.call("UpdateSandbox", message, repeatable=True))

    async def list_checkpoints(self, *, sandbox_id: Optional[str] = None) -> List[TeamCheckpoint]:
        """The team's checkpoints, also of deleted sandboxes, newest first."""
        pages = self._pages("ListCheckpoints", compact(sandbox_id=sandbox_id), "checkpoints")
        return [one async for page in pages for one in decode_list(TeamCheckpoint, page, "checkpoints")]

    async def delete_checkpoint(self, id: str) -> int:
        """How many bytes that freed."""
        return int(cast(float, _fields(await self.call("DeleteCheckpoint", {"id": id}))["freed_bytes"]))

    async def get_usage(
        self,
        *,
        sandbox_id: Optional[str] = None,
        from_: Optional[str] = None,
        to: Optional[str] = None,
        page_size: Optional[int] = None,
        page_token: Optional[str] = None,
    ) -> Usage:
        """For how long the team's sandboxes were RUNNING, deleted ones included. `from_` and `to`: RFC 3339."""
        message = compact(sandbox_id=sandbox_id, to=to, page_size=page_size, page_token=page_token)
        if from_ is not None:
            message["from"] = from_
        return decode(Usage, await self.call("GetUsage", message, repeatable=True))

    async def issue_port_link(self, sandbox_id: str, port: int, *, path: Optional[str] = None) -> PortLink:
        """A link that opens a port of the sandbox in a browser. `path` defaults to `/`."""
        message = compact(sandbox_id=sandbox_id, port=port, path=path)
        return decode(PortLink, await self.call("IssuePortLink", message))

    async def list_audit_entries(
        self, *, subject: Optional[str] = None, page_size: Optional[int] = None, page_token: Optional[str] = None
    ) -> AuditPage:
        """What was done to the team's sandboxes, checkpoints and keys. `page_size`: 100, at most 1,000."""
        message = compact(subject=subject, page_size=page_size, page_token=page_token)
        return decode(AuditPage, await self.call("ListAuditEntries", message, repeatable=True))

    async def get_sandbox_egress(self, id: str) -> SandboxEgress:
        """What the sandbox may reach on the network, and what it was denied."""
        return decode(SandboxEgress, await self.call("GetSandboxEgress", {"id": id}, repeatable=True))

    async def get_sandbox_metrics(self, id: str) -> SandboxMetrics:
        """What the sandbox uses now, and used in the last hour. Wakes nothing."""
        return decode(SandboxMetrics, await self.call("GetSandboxMetrics", {"id": id}, repeatable=True))

    async def create_api_key(self, name: str, *, expires_in_seconds: Optional[int] = None) -> CreatedApiKey:
        """A further API key of the team; `expires_in_seconds` 0: never."""
        message = compact(name=name, expires_in_seconds=expires_in_seconds)
        return decode(CreatedApiKey, await self.call("CreateApiKey", message, service=_API_KEYS))

    async def list_api_keys(self) -> List[ApiKey]:
        pages = self._pages("ListApiKeys", {}, "keys", _API_KEYS)
        return [one async for page in pages for one in decode_list(ApiKey, page, "keys")]

    async def revoke_api_key(self, id: str) -> None:
        await self.call("RevokeApiKey", {"id": id}, service=_API_KEYS)

    async def call(
        self, method: str, message: Dict[str, object], *, service: str = _SANDBOXES, repeatable: bool = False
    ) -> object:
        """The answer of any method, for those that the client has none for."""
        path = f"/{service}/{method}"
        headers = {"content-type": "application/json", "authorization": f"Bearer {self.connection.api_key}"}
        request: Request[AsyncBody] = Request(
            "POST", f"{self.connection.url}{path}", headers, json_body(message), repeatable, gateway=True
        )
        try:
            response = await self._transport.send(request)
        except UnauthenticatedError as error:
            source = self.connection.api_key_source
            raise with_remedy(error, f"the key came from {source}; check that it is one of this service's") from None
        self._clock.learn(response.headers)
        return json_of(await self._transport.read(response), f"the answer of {self.connection.url} to {method}")

    async def _make(self, method: str, message: Dict[str, object]) -> object:
        return await self.call(method, message, repeatable="idempotency_key" in message)

    async def _pages(
        self, method: str, message: Dict[str, object], name: str, service: str = _SANDBOXES
    ) -> AsyncGenerator[object, None]:
        while True:
            fields = _fields(await self.call(method, message, service=service, repeatable=True))
            yield fields.get(name, [])
            if not fields.get("next_page_token"):
                return
            message = {**message, "page_token": fields["next_page_token"]}


def _fields(answer: object) -> Dict[str, object]:
    if not isinstance(answer, dict):
        raise ClocheError("the service's answer is no object")
    return cast(Dict[str, object], answer)


def _sandbox(answer: object) -> SandboxInfo:
    return decode(SandboxInfo, _fields(answer).get("sandbox"), "sandbox")
