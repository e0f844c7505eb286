"""Which proxy of the environment a request goes through: HTTP_PROXY, HTTPS_PROXY, ALL_PROXY and NO_PROXY. Free of I/O.

NO_PROXY names hosts, which include the names below them, addresses (also `[::1]`) and networks (`10.0.0.0/8`, `fd00::/8`), each with
or without a port. httpx refuses or ignores several of these.
"""

from __future__ import annotations

import re
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Mapping, Optional, Union
from urllib.request import getproxies


class Proxies:
    def __init__(self, found: Optional[Mapping[str, str]] = None) -> None:
        """`found`: as `urllib.request.getproxies` answers, which is the default."""
        self._found = dict(getproxies() if found is None else found)
        self._exceptions = re.split(r"[\s,]+", self._found.pop("no", ""))

    def of(self, scheme: str, host: str, port: int) -> Optional[str]:
        """The URL of the proxy; None: connect directly, as to each address of this machine."""
        proxy = self._found.get(scheme) or self._found.get("all")
        if not proxy or is_loopback(host) or any(_names(entry, host, port) for entry in self._exceptions):
            return None
        return proxy if "://" in proxy else f"http://{proxy}"


def is_loopback(host: str) -> bool:
    address = _address(host)
    if address is not None:
        mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
        return (mapped or address).is_loopback
    name = host.lower().rstrip(".")
    return name == "localhost" or name.endswith(".localhost")


def _names(entry: str, host: str, port: int) -> bool:
    """Whether an entry of NO_PROXY names a host."""
    entry = entry.rpartition("://")[2].lower()
    if entry == "*":
        return True
    address = _address(host)
    if address is not None and _network_has(entry, address):
        return True
    name, colon, its_port = entry.rpartition(":")
    if colon and its_port.isdigit() and (":" not in name or name.endswith("]")):
        return int(its_port) == port and _names(name, host, port)
    suffix = entry.lstrip("*").lstrip(".")
    return bool(suffix) and address is None and f".{host.lower().rstrip('.')}".endswith(f".{suffix}")


def _network_has(entry: str, address: Union[IPv4Address, IPv6Address]) -> bool:
    try:
        return address in ip_network(re.sub(r"[\[\]]", "", entry), strict=False)
    except ValueError:
        return False


def _address(host: str) -> Union[IPv4Address, IPv6Address, None]:
    try:
        return ip_address(host.strip("[]"))
    except ValueError:
        return None
