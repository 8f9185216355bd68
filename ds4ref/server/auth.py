"""Access control: API key, Host header, and requests from other sites' pages.

A server on the loopback interface is reached by every page that the user's browser shows: a page can have its own
name resolve to 127.0.0.1 (DNS rebinding), and can send simple requests anywhere. The first is seen by the Host header,
which then has a name that is not ours; the second by what browsers say about where a request comes from.
"""

from __future__ import annotations

import hmac
import ipaddress
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field

from ..errors import UsageError

OPEN = ("/", "/health")
"""Paths that need no key: the page without data, and health."""


@dataclass(frozen=True)
class Access:
    """Access rules.

    key     what requests must carry, as ``Authorization: Bearer`` or ``x-api-key``; "" for no key
    hosts   names, besides loopback's and addresses, by which it may be called
    cors    pages of any site may ask, and read
    """

    key: str = field(default="", repr=False)
    hosts: frozenset[str] = frozenset()
    cors: bool = False

    def has_key(self, headers: Mapping[str, str]) -> bool:
        """Return whether the request carries the key, compared in constant time."""
        if not self.key:
            return True
        scheme, _, credentials = headers.get("authorization", "").partition(" ")
        offered = [headers.get("x-api-key", ""), credentials.strip() if scheme.lower() == "bearer" else ""]
        wanted = self.key.encode()
        matches = [hmac.compare_digest(one.encode("latin-1", "replace"), wanted) for one in offered]
        return any(matches)

    def knows_host(self, headers: Mapping[str, str]) -> bool:
        """Return whether the Host header is acceptable: an address, a known name, or absent (HTTP/1.0, no browser)."""
        host = headers.get("host")
        if host is None:
            return True
        name = host_name(host)
        return name == "localhost" or name.endswith(".localhost") or name in self.hosts or is_address(name)

    def knows_site(self, headers: Mapping[str, str]) -> bool:
        """Return whether the request is not from another site's page, or ``cors`` allows those.

        Not every browser sends Sec-Fetch-Site to addresses in the network, but all send Origin.
        """
        if self.cors:
            return True
        scheme, separator, host = headers.get("origin", "").partition("://")
        foreign = bool(separator) and scheme in ("http", "https") and not self.knows_host({"host": host})
        return not foreign and headers.get("sec-fetch-site") != "cross-site"


CORS = {
    "access-control-allow-origin": "*",
    "access-control-allow-methods": "GET, POST, OPTIONS",
    "access-control-allow-headers": "*",
}


def host_name(host: str) -> str:
    """Return the name in a Host header without port, brackets or final dot."""
    host = host.strip().lower()
    if host.startswith("["):
        return host[1:].partition("]")[0]
    name, colon, port = host.rpartition(":")
    return (name if colon and port.isdigit() or colon and not port else host).removesuffix(".")


def is_address(name: str) -> bool:
    """Return whether ``name`` is an IP address."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def resolve(host: str) -> tuple[socket.AddressFamily, str]:
    """Resolve ``host`` to the address to listen on, IPv4 if it has both; UsageError if it has none."""
    try:
        addresses = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        why = getattr(error, "strerror", None) or "not a host name"
        raise UsageError(f"--host {host}: {why}") from None
    family, _, _, _, address = min(addresses, key=lambda one: one[0] != socket.AF_INET)
    return family, str(address[0])


def check_binding(host: str, key: str, insecure: bool) -> None:
    """Raise UsageError if the server would be open to the network without a key."""
    _, address = resolve(host)
    if not ipaddress.ip_address(address.partition("%")[0]).is_loopback and not key and not insecure:
        raise UsageError(f"--host {host} is open to the network: give it an --api-key, or say --insecure")
