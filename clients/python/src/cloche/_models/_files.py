"""Files and directories."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Dict, List, Literal, Optional
from urllib.parse import unquote_to_bytes

__all__ = [
    "EntryInfo",
    "Exists",
    "FileChange",
    "FileHead",
    "FileLink",
    "FileList",
    "SkippedEntry",
    "Unpacked",
]


@dataclass(frozen=True)
class EntryInfo:
    name: str
    path: str
    """Absolute."""
    size: int
    """Bytes."""
    modified_at: str
    is_dir: bool
    permissions: str
    """Octal, `"0644"`."""
    owner: str
    group: str
    symlink_target: str
    """Empty where it is no symlink."""
    path_encoded: str = ""
    """The bytes of the path, percent-encoded, where they are not UTF-8; else empty."""
    symlink_target_encoded: str = ""
    attributes: Dict[str, str] = field(default_factory=lambda: {})
    """Extended attributes of `user.*` by name, values in base64; only where they were asked for, or given to a write."""

    @property
    def path_bytes(self) -> bytes:
        """The path as the bytes that it is, as every call takes it."""
        return unquote_to_bytes(self.path_encoded) if self.path_encoded else self.path.encode()


@dataclass(frozen=True)
class Exists:
    """True where the path exists."""

    exists: bool
    entry_type: Literal["file", "directory", "symlink", ""]
    """Empty for what is missing."""

    def __bool__(self) -> bool:
        return self.exists


@dataclass(frozen=True)
class FileList:
    path: str
    entries: List[EntryInfo]
    """Sorted by path."""
    truncated: bool
    """There are more, deeper or beyond 10,000."""
    path_encoded: str = ""


@dataclass(frozen=True)
class FileHead:
    """What the headers of a file say of it."""

    size: Optional[int]
    """Bytes; None for what the system makes up, as in /proc."""
    etag: Optional[str]
    """Another one for each version of the content; None as `size`."""
    last_modified: Optional[str]
    """As HTTP writes it: `Tue, 15 Nov 1994 12:45:26 GMT`."""


@dataclass(frozen=True)
class FileChange:
    """What a watch tells. `overflow`: some changes were lost, list anew what you need."""

    type: Literal["created", "modified", "deleted", "renamed", "attributes", "overflow"]
    path: str
    entry_type: Literal["file", "directory", "symlink"]
    from_: Optional[str] = None
    """Of `renamed`: where it was."""
    path_encoded: str = ""
    """The bytes of the path, percent-encoded, where they are not UTF-8; else empty."""
    from_encoded: str = ""


@dataclass(frozen=True)
class FileLink:
    url: str
    """Opens one file without a token."""
    expires_at: str


@dataclass(frozen=True)
class SkippedEntry:
    path: str
    reason: str


@dataclass(frozen=True)
class Unpacked:
    ok: bool
    entries: int
    """Those that were made."""
    skipped: int
    skipped_entries: List[SkippedEntry] = field(default_factory=lambda: [])
    """The first 16 of those that could not be made."""
