"""Access control: API key, Host header, and requests from other sites' pages.

Any web page that the user opens can send requests to a server on the loopback interface, in two ways: by DNS rebinding
(the page's own name resolves to 127.0.0.1), detected by a Host header that is not this server's name; and by simple
cross-site requests, detected by the headers Sec-Fetch-Site and Origin.
"""

from __future__ import annotations

import hmac
import ipaddress
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field

from ..errors import UsageError

PAGES = ("/",)
"""The chat page. Links on other sites may lead to it, since it holds no data itself."""
OPEN = (*PAGES, "/health")
"""Paths that need no API key."""


@dataclass(frozen=True)
class Access:
    """Access rules.

    key     API key that requests must carry, as ``Authorization: Bearer`` or ``x-api-key``; "" for none
    hosts   accepted names in the Host header, besides loopback names and IP addresses
    cors    whether pages of any site may send requests and read the answers
    """

    key: str = field(default="", repr=False)
    hosts: frozenset[str] = frozenset()
    cors: bool = False

    def has_key(self, headers: Mapping[str, str]) -> bool:
        """Return whether the request carries the API key, compared in constant time."""
        if not self.key:
            return True
        scheme, _, credentials = headers.get("authorization", "").partition(" ")
        offered = [headers.get("x-api-key", ""), credentials.strip() if scheme.lower() == "bearer" else ""]
        wanted = self.key.encode()
        matches = [hmac.compare_digest(one.encode("latin-1", "replace"), wanted) for one in offered]
        return any(matches)

    def knows_host(self, headers: Mapping[str, str]) -> bool:
        """Return whether the Host header is acceptable: an IP address, a known name, or absent (as in HTTP/1.0)."""
        host = headers.get("host")
        if host is None:
            return True
        name = host_name(host)
        return name == "localhost" or name.endswith(".localhost") or name in self.hosts or is_address(name)

    def knows_site(self, headers: Mapping[str, str]) -> bool:
        """Return whether ``cors`` is on or the request does not come from another site's page.

        Checks Origin besides Sec-Fetch-Site, which not every browser sends to addresses in the local network.
        """
        if self.cors:
            return True
        if headers.get("origin", "").strip().lower() == "null":
            return False  # the origin of pages that hide where they come from: a sandboxed frame, a file, a data: URL
        scheme, separator, host = headers.get("origin", "").partition("://")
        foreign = bool(separator) and scheme in ("http", "https") and not self.knows_host({"host": host})
        return not foreign and headers.get("sec-fetch-site") != "cross-site"


CORS = {
    "access-control-allow-origin": "*",
    "access-control-allow-methods": "GET, POST, OPTIONS",
    "access-control-allow-headers": "*",
}


def host_name(host: str) -> str:
    """Return the host name of a Host header, without port, brackets and final dot."""
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
    """Return the address family and address to listen on for ``host``, preferring IPv4; UsageError if unknown."""
    try:
        addresses = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        why = getattr(error, "strerror", None) or "not a host name"
        raise UsageError(f"--host {host}: {why}") from None
    family, _, _, _, address = min(addresses, key=lambda one: one[0] != socket.AF_INET)
    return family, str(address[0])


def check_binding(host: str, key: str, insecure: bool) -> None:
    """Raise UsageError if ``host`` is reachable from the network and there is no key, unless ``insecure``."""
    _, address = resolve(host)
    if not ipaddress.ip_address(address.partition("%")[0]).is_loopback and not key and not insecure:
        raise UsageError(f"--host {host} is open to the network: give it a key (--key-env), or say --insecure")
