"""Answers of the service as values or errors. Free of I/O: both clients use it."""

from __future__ import annotations

import json
from typing import Dict, List, Mapping, Optional, cast

from ._errors import ERRORS_BY_CODE, ClocheAPIError, ClocheError

_CODES_BY_STATUS: Dict[int, str] = {
    400: "invalid_argument",
    401: "unauthenticated",
    403: "permission_denied",
    404: "not_found",
    408: "deadline_exceeded",
    409: "failed_precondition",
    413: "resource_exhausted",
    429: "resource_exhausted",
    431: "resource_exhausted",
    501: "unimplemented",
    503: "unavailable",
    507: "resource_exhausted",
}


def json_of(body: bytes, what: str) -> object:
    """`what` names the answer in the error."""
    try:
        return cast(object, json.loads(body))
    except ValueError as error:
        raise ClocheError(f"{what} is no JSON; is it a Cloche service that answers there?") from error


def fields_of(body: object) -> Dict[str, object]:
    """The fields of a JSON object; none where it is no object."""
    return cast(Dict[str, object], body) if isinstance(body, dict) else {}


def error_of(body: object, status: int, headers: Mapping[str, str], reason: str = "") -> ClocheAPIError:
    """The error in a parsed body; also where a proxy in between wrote it and it has not the service's shape."""
    fields = fields_of(body)
    code, message, details = fields.get("code"), fields.get("message"), fields.get("details")
    code = code if isinstance(code, str) else _CODES_BY_STATUS.get(status, "unknown")
    return ERRORS_BY_CODE.get(code, ClocheAPIError)(
        message if isinstance(message, str) else f"HTTP {status} {reason}".strip(),
        code=code,
        status=status,
        request_id=headers.get("x-request-id"),
        details=cast(List[object], details) if isinstance(details, list) else (),
        retry_after_seconds=_seconds(headers.get("retry-after")),
    )


def error_of_answer(body: bytes, status: int, headers: Mapping[str, str], reason: str) -> ClocheAPIError:
    """The error in an answer that is not 2xx."""
    try:
        parsed = cast(object, json.loads(body))
    except ValueError:
        parsed = None
    return error_of(parsed, status, headers, reason)


def with_remedy(error: ClocheAPIError, remedy: str) -> ClocheAPIError:
    """The same error, its message followed by what to do."""
    return type(error)(
        f"{error.message}; {remedy}",
        code=error.code,
        status=error.status,
        request_id=error.request_id,
        details=error.details,
        retry_after_seconds=error.retry_after_seconds,
    )


def _seconds(text: Optional[str]) -> Optional[float]:
    try:
        return None if text is None else float(text)
    except ValueError:
        return None
