"""The JSON key-value store of a sandbox."""

from __future__ import annotations

from typing import Dict, Generator, Optional, Sequence, cast

from .._decode import decode
from .._models import StoreBatchResult, StoreDeleted, StoreKeys, StoreOperation, StoreSetResult, StoreValue
from .._paths import compact, segment
from .data_plane import DataPlane

_PAGE_KEYS = 10_000


class Store:
    def __init__(self, data_plane: DataPlane, wrap_values: bool) -> None:
        """`wrap_values`: what is no dict is stored as `{"v": value}`, so that a get always answers an object."""
        self._data_plane = data_plane
        self._wrap = wrap_values

    def set(self, key: str, value: object, *, ttl_seconds: Optional[int] = None) -> StoreSetResult:
        """Overwrites. Any JSON up to 1 MiB; `ttl_seconds` is a positive integer, left out: no expiry."""
        json = {"value": self._wrapped(value), **compact(ttl_seconds=ttl_seconds)}
        return decode(StoreSetResult, self._data_plane.json("PUT", _path(key), json=json))

    def get(self, key: str) -> StoreValue:
        """NotFoundError for a key that does not exist or has expired."""
        return decode(StoreValue, self._data_plane.json("GET", _path(key)))

    def delete(self, key: str) -> StoreDeleted:
        return decode(StoreDeleted, self._data_plane.json("DELETE", _path(key), repeatable=False))

    def keys(
        self, *, prefix: Optional[str] = None, limit: Optional[int] = None, cursor: Optional[str] = None
    ) -> StoreKeys:
        """One page of keys; `limit` defaults to 1,000, at most 10,000; `cursor` of the page before."""
        query = {"prefix": prefix, "limit": limit, "cursor": cursor}
        return decode(StoreKeys, self._data_plane.json("GET", "/v1/store", query=query))

    def all_keys(self, *, prefix: Optional[str] = None) -> Generator[str, None, None]:
        """Every key, page after page."""
        cursor: Optional[str] = None
        while True:
            page = self.keys(prefix=prefix, limit=_PAGE_KEYS, cursor=cursor)
            for key in page.keys:
                yield key
            if not page.cursor:
                return
            cursor = page.cursor

    def batch(self, operations: Sequence[StoreOperation]) -> StoreBatchResult:
        """Up to 1,000 operations, all applied or none."""
        json = {"operations": [self._wrapped_operation(one) for one in operations]}
        return decode(StoreBatchResult, self._data_plane.json("POST", "/v1/store/batch", json=json))

    def _wrapped_operation(self, operation: StoreOperation) -> Dict[str, object]:
        fields = cast(Dict[str, object], operation)
        if self._wrap and fields.get("op") == "set" and "value" in fields:
            return {**fields, "value": self._wrapped(fields["value"])}
        return fields

    def _wrapped(self, value: object) -> object:
        return {"v": value} if self._wrap and not _is_object(value) else value


def _is_object(value: object) -> bool:
    return isinstance(value, dict)


def _path(key: str) -> str:
    return f"/v1/store/{segment('key', key)}"
