"""A Cloche sandbox as a backend of LangChain's Deep Agents: commands and files; the rest is derived from them upstream."""

from __future__ import annotations

from typing import Dict, List, Optional, Tuple

import cloche
from deepagents.backends.protocol import ExecuteResponse, FileDownloadResponse, FileUploadResponse
from deepagents.backends.sandbox import BaseSandbox

__all__ = ["ClocheSandbox"]

_TIMED_OUT = 124
_BY_REASON: Dict[Optional[str], str] = {"is_directory": "is_directory", "not_directory": "invalid_path"}


class ClocheSandbox(BaseSandbox):
    """Wraps a sandbox that is there: `ClocheSandbox(cloche.create())`. Deleting it is its owner's."""

    def __init__(
        self, sandbox: cloche.Sandbox, *, timeout: int = 1800, user: Optional[str] = None, directory: Optional[str] = None
    ) -> None:
        """`timeout`: seconds of a command without one of its own, 0: none. `user`: by default root. `directory`: where
        commands run, by default the user's home."""
        self._sandbox = sandbox
        self._timeout = timeout
        self._user = user
        self._directory = directory

    @property
    def id(self) -> str:
        return self._sandbox.id

    def execute(self, command: str, *, timeout: Optional[int] = None) -> ExecuteResponse:
        """Standard output and error as one text, in the order they were written."""
        seconds = self._timeout if timeout is None else timeout
        result = self._sandbox.exec(
            ["bash", "-c", f"exec 2>&1\n{command}"],
            dir=self._directory,
            user=self._user,
            timeout_ms=seconds * 1000 if seconds > 0 else None,
        )
        if result.timed_out:
            said = f"{result.stdout}\nCommand timed out after {seconds} seconds".lstrip()
            return ExecuteResponse(output=said, exit_code=_TIMED_OUT, truncated=result.stdout_truncated)
        return ExecuteResponse(output=result.stdout, exit_code=result.exit_code, truncated=result.stdout_truncated)

    def upload_files(self, files: List[Tuple[str, bytes]]) -> List[FileUploadResponse]:
        return [FileUploadResponse(path=path, error=self._upload(path, content)) for path, content in files]

    def download_files(self, paths: List[str]) -> List[FileDownloadResponse]:
        return [self._download(path) for path in paths]

    def _upload(self, path: str, content: bytes) -> Optional[str]:
        if not path.startswith("/"):
            return "invalid_path"
        try:
            self._sandbox.files.upload(path, content, as_user=self._user)
        except cloche.ClocheAPIError as error:
            return _name_of(error)
        return None

    def _download(self, path: str) -> FileDownloadResponse:
        if not path.startswith("/"):
            return FileDownloadResponse(path=path, error="invalid_path")
        try:
            return FileDownloadResponse(path=path, content=self._sandbox.files.read(path, as_user=self._user))
        except cloche.ClocheAPIError as error:
            return FileDownloadResponse(path=path, error=_name_of(error))


def _name_of(error: cloche.ClocheAPIError) -> str:
    """The error in the words of Deep Agents; the service's own where they have none."""
    if isinstance(error, cloche.PermissionDeniedError):
        return "permission_denied"
    if isinstance(error, cloche.NotFoundError):
        return "file_not_found"
    return _BY_REASON.get(error.reason) or error.message
