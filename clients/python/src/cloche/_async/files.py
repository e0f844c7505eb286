"""Files of a sandbox. Every path is absolute; bytes name what is not UTF-8.

All act as root, or with `as_user` as that Unix user: a name or number, with `:group` in place of the user's own groups. The call
then has that user's rights (PermissionDeniedError where they do not suffice), and what it makes is the user's.
"""

from __future__ import annotations

import json
from typing import AsyncGenerator, AsyncIterator, Dict, Literal, Mapping, Optional, Union, cast

from .._answers import fields_of
from .._decode import decode
from .._errors import ClocheConnectionError
from .._models import EntryInfo, Exists, FileChange, FileHead, FileLink, FileList, Unpacked
from .._paths import Path, compact, path_field
from .._sse import EventParser
from .data_plane import AsyncDataPlane
from .stream import AsyncByteStream, AsyncStream

_TOLD = ("ready", "created", "modified", "deleted", "renamed", "attributes", "overflow")


class AsyncFiles:
    def __init__(self, data_plane: AsyncDataPlane) -> None:
        self._data_plane = data_plane

    async def write(
        self,
        path: Path,
        content: Union[str, bytes],
        *,
        mode: Optional[str] = None,
        owner: Optional[str] = None,
        group: Optional[str] = None,
        attributes: Optional[Mapping[str, str]] = None,
        sha256: Optional[str] = None,
        as_user: Optional[str] = None,
    ) -> EntryInfo:
        """Writes a file of up to 1,048,576 bytes, atomically; missing parent directories are created.

        `mode`: octal, `"0755"`; by default as it is, else 0644. `owner` and `group`: names or numbers; by default as they
        are. `attributes`: extended attributes, all that it shall have: names that begin with `user.`, values in base64.
        `sha256`: of the content, in hexadecimal digits; other content changes nothing. Larger content:
        ResourceExhaustedError; use `upload`.
        """
        body = content.encode() if isinstance(content, str) else content
        # The same bytes again are the same file.
        answer = await self._data_plane.json(
            "POST",
            "/v1/files",
            query={"path": path, "as_user": as_user},
            headers=_wishes(mode, owner, group, attributes, sha256),
            body=body,
            repeatable=True,
        )
        return decode(EntryInfo, answer)

    async def upload(
        self,
        path: Path,
        content: Union[str, bytes, AsyncIterator[bytes]],
        *,
        append: bool = False,
        mode: Optional[str] = None,
        owner: Optional[str] = None,
        group: Optional[str] = None,
        attributes: Optional[Mapping[str, str]] = None,
        sha256: Optional[str] = None,
        as_user: Optional[str] = None,
    ) -> EntryInfo:
        """Writes a file of any size, atomically: content that breaks off, or is not what `sha256` says, changes nothing.

        `append`: adds to the end of the file that is there, in place. The rest as in `write`.
        """
        body = content.encode() if isinstance(content, str) else content
        answer = await self._data_plane.json(
            "PUT",
            "/v1/files",
            query={"path": path, "append": append or None, "as_user": as_user},
            headers=_wishes(mode, owner, group, attributes, sha256),
            body=body,
            repeatable=not append,
        )
        return decode(EntryInfo, answer)

    async def read(self, path: Path, *, as_user: Optional[str] = None) -> bytes:
        """The bytes of a file of any size."""
        return await self._data_plane.read("/v1/files", query={"path": path, "as_user": as_user})

    async def read_text(self, path: Path, *, encoding: str = "utf-8", as_user: Optional[str] = None) -> str:
        return (await self.read(path, as_user=as_user)).decode(encoding)

    async def read_stream(
        self, path: Path, *, start: Optional[int] = None, end: Optional[int] = None, as_user: Optional[str] = None
    ) -> AsyncByteStream:
        """A file as it comes; `start` and `end` (inclusive) in bytes read a part."""
        headers: Dict[str, str] = {}
        if start is not None or end is not None:
            headers["range"] = f"bytes={start or 0}-{'' if end is None else end}"
        query = {"path": path, "as_user": as_user}
        return await self._data_plane.stream("/v1/files", query=query, headers=headers)

    async def head(self, path: Path, *, as_user: Optional[str] = None) -> FileHead:
        """Size and version of a file, without its content."""
        query = {"path": path, "as_user": as_user}
        response = await self._data_plane.request("HEAD", "/v1/files", query=query)
        await response.aclose()
        size = cast(Optional[str], response.headers.get("content-length"))
        etag, modified = response.headers.get("etag"), response.headers.get("last-modified")
        return FileHead(None if size is None else int(size), etag, modified)

    async def list(
        self,
        path: Path,
        *,
        depth: Optional[int] = None,
        attributes: Optional[bool] = None,
        as_user: Optional[str] = None,
    ) -> FileList:
        """Entries of a directory, with `attributes` their extended attributes too; `depth` defaults to 1."""
        query = {"path": path, "depth": depth, "attributes": attributes, "as_user": as_user}
        return decode(FileList, await self._data_plane.json("GET", "/v1/files/list", query=query))

    async def stat(
        self,
        path: Path,
        *,
        follow: Optional[bool] = None,
        attributes: Optional[bool] = None,
        as_user: Optional[str] = None,
    ) -> EntryInfo:
        """Of a final symlink what it is itself, or with `follow` what it leads to. NotFoundError where there is nothing.

        `attributes`: with its extended attributes.
        """
        query = {"path": path, "follow": follow, "attributes": attributes, "as_user": as_user}
        return decode(EntryInfo, await self._data_plane.json("GET", "/v1/files/stat", query=query))

    async def exists(self, path: Path, *, as_user: Optional[str] = None) -> Exists:
        """True where the path exists. Does not follow a final symlink."""
        query = {"path": path, "as_user": as_user}
        return decode(Exists, await self._data_plane.json("GET", "/v1/files/exists", query=query))

    async def mkdir(
        self, path: Path, *, parents: Optional[bool] = None, as_user: Optional[str] = None
    ) -> EntryInfo:
        """`parents`: as `mkdir -p`. Without: AlreadyExistsError, or NotFoundError for a missing parent."""
        return await self._change("mkdir", as_user, {**path_field("path", path), **compact(parents=parents)})

    async def move(self, source: Path, destination: Path, *, as_user: Optional[str] = None) -> EntryInfo:
        """Replaces a destination that is a file; one that is a directory is refused."""
        paths = {**path_field("source", source), **path_field("destination", destination)}
        return await self._change("move", as_user, paths)

    async def copy(
        self, source: Path, destination: Path, *, recursive: Optional[bool] = None, as_user: Optional[str] = None
    ) -> EntryInfo:
        """Keeps mode, owner, times and holes; replaces a destination that is a file, in one step.

        A directory needs `recursive`, and one at the destination is refused.
        """
        paths = {**path_field("source", source), **path_field("destination", destination)}
        return await self._change("copy", as_user, {**paths, **compact(recursive=recursive)})

    async def chmod(
        self, path: Path, mode: str, *, recursive: Optional[bool] = None, as_user: Optional[str] = None
    ) -> EntryInfo:
        """`mode`: octal, `"0755"`. `recursive`: all below a directory too, but no symlinks."""
        json = {**path_field("path", path), **compact(mode=mode, recursive=recursive)}
        return await self._change("chmod", as_user, json)

    async def chown(
        self,
        path: Path,
        *,
        user: Union[str, int, None] = None,
        group: Union[str, int, None] = None,
        recursive: Optional[bool] = None,
        as_user: Optional[str] = None,
    ) -> EntryInfo:
        """`user` and `group` by name or number, at least one of them. `recursive`: all below a directory too."""
        json = {**path_field("path", path), **compact(user=user, group=group, recursive=recursive)}
        return await self._change("chown", as_user, json)

    async def delete(
        self, path: Path, *, recursive: Optional[bool] = None, as_user: Optional[str] = None
    ) -> None:
        """`recursive` is needed for a directory that is not empty."""
        query = {"path": path, "recursive": recursive, "as_user": as_user}
        await self._data_plane.json("DELETE", "/v1/files", query=query, repeatable=False)

    async def watch(
        self, path: Path, *, recursive: Optional[bool] = None, as_user: Optional[str] = None
    ) -> AsyncStream[FileChange]:
        """Hears of every change of a file, or of a directory and its entries, from the moment at which it answers.

        `recursive`: of all below it. It ends when what is watched is deleted, or the sandbox is suspended or restored.
        """
        query = {"path": path, "recursive": recursive, "as_user": as_user}
        changes = AsyncStream(_changes(await self._data_plane.stream("/v1/files/watch", query=query)))
        async for _ready in changes:
            return changes
        raise ClocheConnectionError("the watch ended before it was ready")

    async def link(
        self,
        path: Path,
        *,
        operation: Literal["read", "write"] = "read",
        expires_in_seconds: Optional[int] = None,
        once: Optional[bool] = None,
        as_user: Optional[str] = None,
    ) -> FileLink:
        """A link with which anybody may read or write that one file without a token, until it expires.

        `expires_in_seconds`: 300, at most 604,800. `once`: for one use. With `as_user` it has that user's rights.
        """
        json = {**path_field("path", path), **compact(operation=operation, expires_in_seconds=expires_in_seconds, once=once)}
        query = {"as_user": as_user}
        return decode(FileLink, await self._data_plane.json("POST", "/v1/files/link", json=json, query=query))

    async def pack(self, path: Path, *, as_user: Optional[str] = None) -> AsyncByteStream:
        """A tar of a directory, any size."""
        return await self._data_plane.stream("/v1/files/archive", query={"path": path, "as_user": as_user})

    async def unpack(
        self, path: Path, tar: Union[bytes, AsyncIterator[bytes]], *, as_user: Optional[str] = None
    ) -> Unpacked:
        """Unpacks a tar, gzip too, of any size into a directory, which is created."""
        answer = await self._data_plane.json(
            "POST",
            "/v1/files/archive",
            query={"path": path, "as_user": as_user},
            headers={"content-type": "application/x-tar"},
            body=tar,
        )
        return decode(Unpacked, answer)

    async def _change(self, what: str, as_user: Optional[str], json: Mapping[str, object]) -> EntryInfo:
        path, query = f"/v1/files/{what}", {"as_user": as_user}
        return decode(EntryInfo, await self._data_plane.json("POST", path, json=json, query=query))


def _wishes(
    mode: Optional[str],
    owner: Optional[str],
    group: Optional[str],
    attributes: Optional[Mapping[str, str]],
    sha256: Optional[str],
) -> Dict[str, str]:
    wishes = {
        "x-file-mode": mode,
        "x-file-owner": owner,
        "x-file-group": group,
        "x-file-attributes": None if attributes is None else json.dumps(dict(attributes)),
        "x-content-sha256": sha256,
    }
    given = {name: value for name, value in wishes.items() if value is not None}
    return {"content-type": "application/octet-stream", **given}


async def _changes(stream: AsyncByteStream) -> AsyncGenerator[FileChange, None]:
    """First of all `ready`."""
    parser = EventParser()
    try:
        async for piece in stream:
            for event, data in parser.feed(piece):
                if event in _TOLD:
                    yield decode(FileChange, {**fields_of(cast(object, json.loads(data))), "type": event}, event)
    finally:
        await stream.aclose()
