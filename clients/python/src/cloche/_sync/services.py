"""Supervised background services of a sandbox."""

from __future__ import annotations

import codecs
from typing import Generator, List, Literal, Mapping, Optional, Sequence

from .._answers import fields_of
from .._decode import decode, decode_list
from .._errors import ClocheConnectionError
from .._models import ServiceExecResult, ServiceRecord
from .._paths import command, compact, segment
from .data_plane import DataPlane
from .stream import Stream


class Services:
    def __init__(self, data_plane: DataPlane) -> None:
        self._data_plane = data_plane

    def list(self) -> List[ServiceRecord]:
        answer = self._data_plane.json("GET", "/v1/services")
        return decode_list(ServiceRecord, fields_of(answer).get("services"), "services")

    def get(self, name: str) -> ServiceRecord:
        return decode(ServiceRecord, self._data_plane.json("GET", _path(name)))

    def put(
        self,
        name: str,
        cmd: str,
        *,
        args: Optional[Sequence[str]] = None,
        env: Optional[Mapping[str, str]] = None,
        working_dir: Optional[str] = None,
        user: Optional[str] = None,
        health_port: Optional[int] = None,
        healthcheck: Optional[bool] = None,
        start_timeout_secs: Optional[int] = None,
        stop_signal: Optional[str] = None,
        stop_timeout_secs: Optional[int] = None,
        needs: Optional[Sequence[str]] = None,
        container: Optional[bool] = None,
        image: Optional[str] = None,
        restart: Optional[Literal["never", "on-failure", "always"]] = None,
        registry_username: Optional[str] = None,
        registry_password: Optional[str] = None,
        registry_ca: Optional[str] = None,
    ) -> ServiceRecord:
        """Creates or replaces a definition; a running service goes on as it is until its next start.

        `cmd`: the program; with `container`, `""` means the entrypoint of `image`. `health_port`: it counts as running when
        this port takes connections. `healthcheck=False`: the image's own health check does not count. `start_timeout_secs`:
        how long it may take until it counts as running (60). `stop_signal`, such as `"SIGINT"`, goes to the program alone;
        `stop_timeout_secs` (10) later its whole tree is killed. `needs`: services that are started before it.
        """
        json = compact(
            cmd=cmd,
            args=args,
            env=env,
            working_dir=working_dir,
            user=user,
            health_port=health_port,
            healthcheck=healthcheck,
            start_timeout_secs=start_timeout_secs,
            stop_signal=stop_signal,
            stop_timeout_secs=stop_timeout_secs,
            needs=needs,
            container=container,
            image=image,
            restart=restart,
            registry_username=registry_username,
            registry_password=registry_password,
            registry_ca=registry_ca,
        )
        return decode(ServiceRecord, self._data_plane.json("PUT", _path(name), json=json))

    def start(self, name: str) -> ServiceRecord:
        """Starts what it needs first; answers when it is running or failed. A need that fails: FailedPreconditionError."""
        return decode(
            ServiceRecord, self._data_plane.json("POST", f"{_path(name)}/start", repeatable=True)
        )

    def stop(self, name: str) -> ServiceRecord:
        """Sends its stop signal, and kills the whole process tree after its stop timeout."""
        return decode(
            ServiceRecord, self._data_plane.json("POST", f"{_path(name)}/stop", repeatable=True)
        )

    def delete(self, name: str) -> None:
        """Stops it and removes its definition."""
        self._data_plane.json("DELETE", _path(name), repeatable=False)

    def exec(self, name: str, cmd: Sequence[str], *, timeout_secs: Optional[int] = None) -> ServiceExecResult:
        """Runs a command in the container of a service that has one. The time limit is in seconds here."""
        json = compact(cmd=command(cmd), timeout_secs=timeout_secs)
        return decode(ServiceExecResult, self._data_plane.json("POST", f"{_path(name)}/exec", json=json))

    def logs(self, name: str, *, tail: Optional[int] = None) -> str:
        """The log, or its last `tail` lines."""
        return (self._data_plane.read(f"{_path(name)}/logs", query={"tail": tail})).decode("utf-8", "replace")

    def follow_logs(self, name: str, *, tail: Optional[int] = None) -> Stream[str]:
        """The log as it is written, until it is closed or the service is deleted."""
        return Stream(self._follow(name, tail))

    def _follow(self, name: str, tail: Optional[int]) -> Generator[str, None, None]:
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        stream = self._data_plane.stream(f"{_path(name)}/logs", query={"tail": tail, "follow": True})
        try:
            for piece in stream:
                text = decoder.decode(piece)
                if text:
                    yield text
        except ClocheConnectionError as error:
            raise ClocheConnectionError("the connection that followed the log ended; the service may go on") from error
        finally:
            stream.close()


def _path(name: str) -> str:
    return f"/v1/services/{segment('name', name)}"
