"""The key-value store."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, List, Literal, Optional, TypedDict, Union

__all__ = [
    "StoreBatchResult",
    "StoreDelete",
    "StoreDeleted",
    "StoreKeys",
    "StoreOperation",
    "StoreSet",
    "StoreSetResult",
    "StoreValue",
]


@dataclass(frozen=True)
class StoreValue:
    value: Any
    """Any JSON."""
    expires_at: Optional[str]
    """None: never."""


@dataclass(frozen=True)
class StoreSetResult:
    ok: bool
    expires_at: Optional[str]


@dataclass(frozen=True)
class StoreDeleted:
    deleted: bool
    """False for a key that was not there."""
    ok: bool


@dataclass(frozen=True)
class StoreKeys:
    """One page of keys, sorted."""

    keys: List[str]
    truncated: bool
    cursor: str = ""
    """For the next page; empty on the last."""


@dataclass(frozen=True)
class StoreBatchResult:
    applied: int
    ok: bool


class _StoreSet(TypedDict):
    op: Literal["set"]
    key: str
    value: Any


class StoreSet(_StoreSet, total=False):
    ttl_seconds: int


class StoreDelete(TypedDict):
    op: Literal["delete"]
    key: str


StoreOperation = Union[StoreSet, StoreDelete]
"""`{"op": "set", "key": "a", "value": 1}` or `{"op": "delete", "key": "a"}`."""
