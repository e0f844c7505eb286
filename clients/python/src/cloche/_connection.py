"""Where a service is and how it is reached: from arguments, else the environment, else the service on this machine."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import Dict, Mapping, Optional, Tuple, cast
from urllib.parse import urlsplit

from ._errors import ClocheConfigError
from ._proxy import is_loopback

_LOOPBACK = ("localhost", "127.0.0.1", "::1")
Address = Tuple[str, int]


@dataclass(frozen=True)
class Connection:
    url: str
    """The gateway, without a slash at its end."""
    api_key: str
    api_key_source: str
    """Where the key came from, for the error of a wrong one."""
    ca_cert: Optional[str] = None
    """PEM of the authority that signed the edge's certificate; trusted besides the public ones."""
    edge: Optional[Address] = None
    """Where sandboxes below `base_domain` are reached; None: where their names say."""
    base_domain: str = "cloche.localhost"
    by_domain: bool = False
    """Each sandbox at its own domain, by TLS, also where a plain address on the loopback serves."""

    def plain_address(self, data_plane_url: str) -> bool:
        """Whether the address of all sandboxes that a token came with is used: it needs neither names nor a CA.

        A gateway elsewhere means its own loopback, not this machine's.
        """
        plain = data_plane_url.startswith("http://") and _is_loopback(data_plane_url)
        return plain and not self.by_domain and _is_loopback(self.url)

    def route(self, host: str, port: int) -> Address:
        """Where to connect for a host. Names below `.localhost` are this machine's and resolve in few libc."""
        name = host.lower()
        if self.edge is not None and name.endswith(f".{self.base_domain}"):
            return self.edge
        return ("127.0.0.1", port) if name.endswith(".localhost") else (host, port)


def find_connection(
    *,
    url: Optional[str] = None,
    api_key: Optional[str] = None,
    ca_cert: Optional[str] = None,
    env: Optional[Mapping[str, str]] = None,
) -> Connection:
    """Raises ClocheConfigError naming the setting that is missing or wrong."""
    env = os.environ if env is None else env
    named = url or env.get("CLOCHE_URL") or env.get("CLOCHE_GATEWAY_URL")
    home = env.get("CLOCHE_HOME") or "/var/lib/cloche"
    local = _local_service(home)
    if named and local and not _same_place(named, local.get("gateway_url", "")):
        local = {}
    found = named or local.get("gateway_url")
    if not found:
        raise ClocheConfigError(
            f"no Cloche service found: start one on this machine (`npm start`; none has run in {home}), "
            "or set CLOCHE_URL and CLOCHE_API_KEY"
        )
    _check_url("CLOCHE_URL" if url is None else "url", found)
    key, source = _api_key(api_key, env, local)
    if not key:
        raise ClocheConfigError(f"no API key: set CLOCHE_API_KEY to an API key of {found}")
    ca_file = ca_cert or env.get("CLOCHE_CA_CERT")
    edge = env.get("CLOCHE_EDGE_URL") or local.get("edge_url")
    return Connection(
        url=found.rstrip("/"),
        api_key=key,
        api_key_source=source,
        ca_cert=_named_ca(ca_file) if ca_file else _local_ca(local.get("ca_cert")),
        edge=_address("CLOCHE_EDGE_URL", edge) if edge else None,
        by_domain=bool(env.get("CLOCHE_EDGE_URL")),
        base_domain=(env.get("CLOCHE_BASE_DOMAIN") or local.get("base_domain") or "cloche.localhost").lower(),
    )


def _api_key(given: Optional[str], env: Mapping[str, str], local: Mapping[str, str]) -> Tuple[str, str]:
    if given:
        return given.strip(), "api_key"
    if env.get("CLOCHE_API_KEY"):
        return env["CLOCHE_API_KEY"].strip(), "CLOCHE_API_KEY"
    return local.get("api_key", ""), "the service's own status file"


def _local_service(home: str) -> Dict[str, str]:
    """What `cloche status --json` prints of the service of a home; empty where none has run or it is another user's."""
    try:
        with open(os.path.join(home, "run", "status.json"), encoding="utf-8") as file:
            status = cast(object, json.load(file))
    except (OSError, ValueError):
        return {}
    if not isinstance(status, dict):
        return {}
    return {name: value for name, value in cast(Dict[str, object], status).items() if isinstance(value, str)}


def _is_loopback(url: str) -> bool:
    return is_loopback(urlsplit(url).hostname or "")


def _same_place(one: str, other: str) -> bool:
    first, second = urlsplit(one), urlsplit(other)
    same_host = first.hostname == second.hostname or (first.hostname in _LOOPBACK and second.hostname in _LOOPBACK)
    return same_host and first.netloc.rpartition(":")[2] == second.netloc.rpartition(":")[2]


def _check_url(name: str, url: str) -> None:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ClocheConfigError(f"{name} is {url!r}; it must be an address such as http://127.0.0.1:7080")
    _port(name, url)


def _address(name: str, url: str) -> Address:
    _check_url(name, url)
    return urlsplit(url).hostname or "", _port(name, url)


def _port(name: str, url: str) -> int:
    try:
        parts = urlsplit(url)
        return parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError as error:
        raise ClocheConfigError(f"{name} is {url!r}; its port must be a number up to 65535") from error


def _named_ca(file: str) -> str:
    try:
        with open(file, encoding="utf-8") as opened:
            return opened.read()
    except (OSError, ValueError) as error:
        raise ClocheConfigError(f"CLOCHE_CA_CERT: cannot read the CA certificate {file}: {error}") from error


def _local_ca(file: Optional[str]) -> Optional[str]:
    try:
        return None if file is None else _named_ca(file)
    except ClocheConfigError:
        return None  # Only who calls a sandbox needs it, and is told then.
