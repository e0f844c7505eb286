"""Paths, queries and bodies of requests. Free of I/O."""

from __future__ import annotations

import json
from typing import Dict, List, Mapping, Sequence, Union
from urllib.parse import quote

from ._errors import ClocheUsageError

Path = Union[str, bytes]
"""An absolute path in the sandbox; bytes for a name that is not UTF-8."""

QueryValue = Union[str, bytes, int, bool, None]


def compact(**fields: object) -> Dict[str, object]:
    """The fields that were given: None stands for what was left out."""
    return {name: value for name, value in fields.items() if value is not None}


def query_string(query: Mapping[str, QueryValue]) -> str:
    parts: List[str] = []
    for name, value in query.items():
        if value is None:
            continue
        text = ("true" if value else "false") if isinstance(value, bool) else value
        parts.append(f"{quote(name, safe='')}={_quoted(name, text if isinstance(text, (str, bytes)) else str(text))}")
    return f"?{'&'.join(parts)}" if parts else ""


def segment(what: str, text: str) -> str:
    """One segment of a path. `.` and `..` would be taken for directions, percent-encoded too, and go elsewhere."""
    if text in ("", ".", ".."):
        raise ClocheUsageError(f"{what} {text!r} is not allowed; use a name other than . and ..")
    return _quoted(what, text)


def path_field(name: str, path: Path) -> Dict[str, object]:
    """A path in a JSON body: `path`, or `path_encoded` for bytes."""
    return {f"{name}_encoded": quote(path, safe="/")} if isinstance(path, bytes) else {name: path}


def json_body(value: object) -> bytes:
    try:
        return json.dumps(value, allow_nan=False, separators=(",", ":")).encode()
    except (TypeError, ValueError) as error:
        raise ClocheUsageError(f"the value is not JSON: {error}") from error


def command(cmd: Sequence[str]) -> List[str]:
    """A text would be taken for a list of its letters."""
    if isinstance(cmd, (str, bytes)):
        raise ClocheUsageError('cmd is a list of a program and its arguments; for a shell line use ["sh", "-c", line]')
    return list(cmd)


def _quoted(what: str, text: Union[str, bytes]) -> str:
    try:
        return quote(text, safe="")
    except UnicodeEncodeError as error:
        raise ClocheUsageError(f"{what} is no text that UTF-8 can say: {text!r}") from error
