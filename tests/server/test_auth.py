"""Who may ask: keys, names, pages of other sites."""

import socket

import pytest

from ds4ref.errors import UsageError
from ds4ref.server.auth import Access, check_binding, resolve
from ds4ref.server.service import Settings

KEY = "s3cret-\u00e4"


@pytest.fixture
def locked(serving):
    """A server with a key."""
    return serving(settings=Settings(access=Access(key=KEY)))


@pytest.mark.parametrize(
    ("headers", "wanted"),
    [
        ({}, 401),
        ({"authorization": b"Bearer " + KEY.encode()}, 200),
        ({"authorization": b"bearer   " + KEY.encode()}, 200),
        ({"x-api-key": KEY.encode()}, 200),
        ({"x-api-key": b"wrong", "authorization": b"Bearer " + KEY.encode()}, 200),
        ({"authorization": b"Basic " + KEY.encode()}, 401),
        ({"authorization": KEY.encode()}, 401),
        ({"x-api-key": KEY.encode() + b"x"}, 401),
        ({"x-api-key": KEY.encode()[:-1]}, 401),
        ({"x-api-key": b""}, 401),
        ({"authorization": b"Bearer"}, 401),
        ({"authorization": b"Bearer \xff\xfe"}, 401),
    ],
)
def test_the_key(locked, headers, wanted):
    answer = locked.client.post("/v1/echo", json={"say": "hi"}, headers=headers)
    assert answer.status_code == wanted


def test_what_is_open_with_a_key(locked):
    assert locked.client.get("/health").status_code == 200
    assert locked.client.get("/").status_code == 200
    assert locked.client.options("/v1/echo").status_code == 204


def test_a_refused_request_costs_no_body(locked):
    answer = locked.raw(b"POST /v1/echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9999999\r\n"
                        b"Expect: 100-continue\r\nConnection: close\r\n\r\n")  # fmt: skip
    assert answer.startswith(b"HTTP/1.1 401")


def test_the_key_is_not_shown():
    assert KEY not in repr(Access(key=KEY)) and KEY not in repr(Settings(access=Access(key=KEY)))


# --- names


@pytest.mark.parametrize(
    ("host", "wanted"),
    [
        ("localhost", 200), ("localhost:1234", 200), ("LOCALHOST.", 200), ("127.0.0.1", 200), ("[::1]:80", 200),
        ("192.168.1.7:8000", 200), ("me.localhost", 200), ("box.lan", 200), ("BOX.lan:8000", 200),
        ("evil.example", 403), ("localhost.evil.example", 403), ("127.0.0.1.evil.example", 403),
        ("evil.example:8000", 403),
        ("box.lan.evil.example", 403), ("notlocalhost", 403), ("127.1@evil.example", 403), ("", 403),
        ("localhost, evil.example", 403), ("localhost evil", 403),
    ],
)  # fmt: skip
def test_by_which_names_it_may_be_called(serving, host, wanted):
    server = serving(settings=Settings(access=Access(hosts=frozenset({"box.lan"}))))
    answer = server.raw(f"GET /health HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
    assert answer.startswith(f"HTTP/1.1 {wanted}".encode()), answer


@pytest.mark.parametrize(("site", "wanted"), [("cross-site", 403), ("same-site", 200), ("same-origin", 200),
                                              ("none", 200), (None, 200)])  # fmt: skip
def test_pages_of_other_sites(serving, site, wanted):
    headers = {} if site is None else {"sec-fetch-site": site}
    assert serving().client.post("/v1/echo", json={"say": "hi"}, headers=headers).status_code == wanted
    assert serving().client.get("/", headers=headers).status_code == 200  # links lead there, and it has no data
    cors = serving(settings=Settings(access=Access(cors=True)))
    assert cors.client.post("/v1/echo", json={"say": "hi"}, headers=headers).status_code == 200


@pytest.mark.parametrize(
    ("origin", "wanted"),
    [
        ("http://evil.example", 403), ("https://evil.example:8000", 403), ("http://localhost.evil.example", 403),
        ("http://localhost:3000", 200), ("https://127.0.0.1", 200), ("http://[::1]:5", 200), ("null", 403),
        ("NULL", 403), ("vscode-webview://abc", 200),
    ],
)  # fmt: skip
def test_where_a_page_is_from(serving, origin, wanted):
    """Browsers that say nothing of sites, as they do in a network without TLS, still say that."""
    headers = {"origin": origin}
    assert serving().client.post("/v1/echo", json={"say": "hi"}, headers=headers).status_code == wanted
    cors = serving(settings=Settings(access=Access(cors=True)))
    assert cors.client.post("/v1/echo", json={"say": "hi"}, headers=headers).status_code == 200


# --- where it listens


def test_loopback_needs_no_key():
    for host in ("127.0.0.1", "localhost", "::1", "127.9.9.9"):
        check_binding(host, "", False)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1"])
def test_the_network_needs_a_key_or_a_word(host):
    with pytest.raises(UsageError, match="--key-env"):
        check_binding(host, "", False)
    check_binding(host, "key", False)
    check_binding(host, "", True)


def test_of_several_addresses_the_first_of_ipv4_is_taken(monkeypatch):
    """ "localhost" is both: clients that try 127.0.0.1 alone would not get through."""
    six = (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("::1", 0, 0, 0))
    fours = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (f"127.0.0.{n}", 0)) for n in (1, 2)]
    for found, wanted in (([six, *fours], (socket.AF_INET, "127.0.0.1")), ([six], (socket.AF_INET6, "::1"))):
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, found=found, **__: found)
        assert resolve("localhost") == wanted
