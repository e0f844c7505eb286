"""What the client raises. All are `ClocheError`; what the service refused is a `ClocheAPIError` with the documented code."""

from __future__ import annotations

from typing import Dict, List, Optional, Sequence, Type, cast

__all__ = [
    "AbortedError",
    "AlreadyExistsError",
    "CanceledError",
    "ClocheAPIError",
    "ClocheCertificateError",
    "ClocheConfigError",
    "ClocheConnectionError",
    "ClocheError",
    "ClocheTimeoutError",
    "ClocheUsageError",
    "ClocheWaitError",
    "DeadlineExceededError",
    "FailedPreconditionError",
    "InternalError",
    "InvalidArgumentError",
    "NotFoundError",
    "PermissionDeniedError",
    "ResourceExhaustedError",
    "UnauthenticatedError",
    "UnavailableError",
    "UnimplementedError",
]


class ClocheError(Exception):
    """Every error that this package raises on its own account."""


class ClocheConfigError(ClocheError):
    """No service was found, or a setting is missing or wrong. The message names the setting."""


class ClocheUsageError(ClocheError, ValueError):
    """An argument that no service could take, found before anything was sent."""


class ClocheConnectionError(ClocheError):
    """No answer came: nobody listens, or the connection was lost. What was asked may have happened."""


class ClocheCertificateError(ClocheConnectionError):
    """The server's certificate is not trusted. Nothing was sent."""


class ClocheTimeoutError(ClocheConnectionError):
    """No connection within ten seconds, or silence for longer than the client's `timeout`."""


class ClocheWaitError(ClocheError):
    """A wait for a state ended without it: too long, or the sandbox went to ERROR or away."""


class ClocheAPIError(ClocheError):
    """The service answered with an error. `message` names the field and says what would be right."""

    def __init__(
        self,
        message: str,
        *,
        code: str,
        status: int,
        request_id: Optional[str] = None,
        details: Sequence[object] = (),
        retry_after_seconds: Optional[float] = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        """`not_found`, `failed_precondition`, …; `unknown` where a proxy in between answered."""
        self.status = status
        """HTTP status."""
        self.request_id = request_id
        """Leads to the service's log line."""
        self.details: List[object] = list(details)
        """What the service adds for programs, as it was sent."""
        self.reason: Optional[str] = _reason_in(self.details)
        """Which case of `code` it is, where programs handle some differently: `is_directory`, `not_directory`, `not_empty`,
        `not_regular_file`, `in_use`, `no_such_user`, `no_such_group`, `too_large`, `limit_reached`, `disk_full`,
        `not_running`, `nothing_listens`, `process_ended`, `input_closed`, `no_terminal`, `needs_unknown`, `needs_cycle`,
        `needs_failed`. None: the code says all, or the gateway said it."""
        self.retry_after_seconds = retry_after_seconds
        """How long to wait before trying again, where the service said so."""


def _reason_in(details: Sequence[object]) -> Optional[str]:
    for detail in details:
        reason = cast(Dict[str, object], detail).get("reason") if isinstance(detail, dict) else None
        if isinstance(reason, str):
            return reason
    return None


class AbortedError(ClocheAPIError):
    """`aborted`: something else was done to it at the same time."""


class AlreadyExistsError(ClocheAPIError):
    """`already_exists`: it is there already."""


class CanceledError(ClocheAPIError):
    """`canceled`: the call was given up."""


class DeadlineExceededError(ClocheAPIError):
    """`deadline_exceeded`: a wait took longer than it was given."""


class FailedPreconditionError(ClocheAPIError):
    """`failed_precondition`: the thing is not in a state for it; the message names the state."""


class InternalError(ClocheAPIError):
    """`internal`: the service's fault; `request_id` leads to its log line."""


class InvalidArgumentError(ClocheAPIError):
    """`invalid_argument`: a field is wrong; the message names it."""


class NotFoundError(ClocheAPIError):
    """`not_found`: the team has no such thing."""


class PermissionDeniedError(ClocheAPIError):
    """`permission_denied`: the caller may not do this."""


class ResourceExhaustedError(ClocheAPIError):
    """`resource_exhausted`: a body over its limit (413), a rate or quota (429), a full disk (507)."""


class UnauthenticatedError(ClocheAPIError):
    """`unauthenticated`: the API key or the token was refused."""


class UnavailableError(ClocheAPIError):
    """`unavailable`: the sandbox does not run; the message names its state."""


class UnimplementedError(ClocheAPIError):
    """`unimplemented`: the service has no such thing."""


ERRORS_BY_CODE: Dict[str, Type[ClocheAPIError]] = {
    "aborted": AbortedError,
    "already_exists": AlreadyExistsError,
    "canceled": CanceledError,
    "deadline_exceeded": DeadlineExceededError,
    "failed_precondition": FailedPreconditionError,
    "internal": InternalError,
    "invalid_argument": InvalidArgumentError,
    "not_found": NotFoundError,
    "permission_denied": PermissionDeniedError,
    "resource_exhausted": ResourceExhaustedError,
    "unauthenticated": UnauthenticatedError,
    "unavailable": UnavailableError,
    "unimplemented": UnimplementedError,
}
