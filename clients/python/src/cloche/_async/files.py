"""Files of a sandbox. Every path is absolute; all act as root. Bytes name what is not UTF-8."""

from __future__ import annotations

from typing import AsyncIterator, Dict, Optional, Union

from .._decode import decode
from .._models import EntryInfo, Exists, FileList, Unpacked
from .._paths import Path, compact, path_field
from .data_plane import AsyncDataPlane
from .stream import AsyncByteStream


class AsyncFiles:
    def __init__(self, data_plane: AsyncDataPlane) -> None:
        self._data_plane = data_plane

    async def write(self, path: Path, content: Union[str, bytes], *, mode: Optional[str] = None) -> EntryInfo:
        """Writes a file of up to 1,048,576 bytes, atomically; missing parent directories are created.

        `mode`: octal, `"0755"`; by default as it is, else 0644. Larger content: ResourceExhaustedError; use `unpack`.
        """
        headers: Dict[str, str] = {"content-type": "application/octet-stream"}
        if mode is not None:
            headers["x-file-mode"] = mode
        body = content.encode() if isinstance(content, str) else content
        # The same bytes again are the same file.
        answer = await self._data_plane.json(
            "POST", "/v1/files", query={"path": path}, headers=headers, body=body, repeatable=True
        )
        return decode(EntryInfo, answer)

    async def read(self, path: Path) -> bytes:
        """The bytes of a file of any size."""
        return await self._data_plane.read("/v1/files", query={"path": path})

    async def read_text(self, path: Path, *, encoding: str = "utf-8") -> str:
        return (await self.read(path)).decode(encoding)

    async def read_stream(
        self, path: Path, *, start: Optional[int] = None, end: Optional[int] = None
    ) -> AsyncByteStream:
        """A file as it comes; `start` and `end` (inclusive) in bytes read a part."""
        headers: Dict[str, str] = {}
        if start is not None or end is not None:
            headers["range"] = f"bytes={start or 0}-{'' if end is None else end}"
        return await self._data_plane.stream("/v1/files", query={"path": path}, headers=headers)

    async def list(self, path: Path, *, depth: Optional[int] = None) -> FileList:
        """Entries of a directory; `depth` defaults to 1."""
        query = {"path": path, "depth": depth}
        return decode(FileList, await self._data_plane.json("GET", "/v1/files/list", query=query))

    async def stat(self, path: Path) -> EntryInfo:
        """Does not follow a final symlink. NotFoundError where there is nothing."""
        return decode(EntryInfo, await self._data_plane.json("GET", "/v1/files/stat", query={"path": path}))

    async def exists(self, path: Path) -> Exists:
        """True where the path exists. Does not follow a final symlink."""
        return decode(Exists, await self._data_plane.json("GET", "/v1/files/exists", query={"path": path}))

    async def mkdir(self, path: Path, *, parents: Optional[bool] = None) -> EntryInfo:
        """`parents`: as `mkdir -p`. Without: AlreadyExistsError, or NotFoundError for a missing parent."""
        json = {**path_field("path", path), **compact(parents=parents)}
        return decode(EntryInfo, await self._data_plane.json("POST", "/v1/files/mkdir", json=json))

    async def move(self, source: Path, destination: Path) -> EntryInfo:
        """Replaces a destination that is a file; one that is a directory is refused."""
        json = {**path_field("source", source), **path_field("destination", destination)}
        return decode(EntryInfo, await self._data_plane.json("POST", "/v1/files/move", json=json))

    async def delete(self, path: Path, *, recursive: Optional[bool] = None) -> None:
        """`recursive` is needed for a directory that is not empty."""
        query = {"path": path, "recursive": recursive}
        await self._data_plane.json("DELETE", "/v1/files", query=query, repeatable=False)

    async def pack(self, path: Path) -> AsyncByteStream:
        """A tar of a directory, any size."""
        return await self._data_plane.stream("/v1/files/archive", query={"path": path})

    async def unpack(self, path: Path, tar: Union[bytes, AsyncIterator[bytes]]) -> Unpacked:
        """Unpacks a tar, gzip too, of any size into a directory, which is created."""
        answer = await self._data_plane.json(
            "POST",
            "/v1/files/archive",
            query={"path": path},
            headers={"content-type": "application/x-tar"},
            body=tar,
        )
        return decode(Unpacked, answer)
