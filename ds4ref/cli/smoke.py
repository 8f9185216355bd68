"""``ds4-server smoke``: runs real clients against ds4-server on the embedded model, or against any other server.

ds4-server smoke --client quick                 SDKs and plain HTTP: what CI runs, in about two minutes
ds4-server smoke --install                      all clients, including agents from npm
ds4-server smoke --url http://127.0.0.1:8080    test another server
"""

from __future__ import annotations

import json
import shutil
import tempfile
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..console.common import EXIT_INTERRUPTED, say
from ..console.flags import add
from ..console.options import Parser, parsed, printable
from ..console.tables import Column, fitted, stdout_width
from ..console.tool import key_of, parser
from ..errors import UsageError

if TYPE_CHECKING:
    from ..conformance.clients import Kind

PROG = "ds4-server smoke"
TOKENS, THEIR_TOKENS = 200, 1024
"""Maximum tokens of an answer: of the embedded model, and of another server's model, which may reason before it
answers."""


def build_parser() -> Parser:
    """Return the parser with every flag of the command."""
    result = parser(
        PROG,
        "Test real clients against a server: start, question, tool call, tool result, answer.",
        "[options]",
        "--client quick",
        "--client codex,claude,opencode,pi --install",
        "--url http://127.0.0.1:8080 --client http",
    )
    result.add_argument("--url", metavar="URL", help="server to test (default: ours, with the embedded model)")
    result.add_argument("--client", metavar="LIST", help="only these clients, separated by commas; quick: all except "
                      "agents; NAME@VERSION or NAME@latest selects a version (all)")  # fmt: skip
    add(result, "--api", metavar="LIST", help="only these APIs, separated by commas: chat, completions, "
                      "responses, messages (all)")  # fmt: skip
    add(result, "--list", dest="listed", help="list the clients and whether they are installed")
    result.add_argument(
        "--install", action="store_true", help="install missing clients from PyPI and npm into the cache"
    )
    result.add_argument("--keep", action="store_true", help="keep the folder with the logs of clients and servers")
    add(result, "--json")
    add(result, "--model-name", help="model name to request (the first that the server lists)")
    add(result, "--key-env", default=None, help="environment variable with the server's API key")
    add(result, "--tokens", help=f"maximum tokens per answer ({TOKENS}; with --url {THEIR_TOKENS})")
    add(result, "--timeout", default=300.0, help="time limit per client, seconds (300)")
    return result


def body(argv: Sequence[str]) -> int:
    """Run the command; return 0 if all required checks passed, else 1."""
    from ..conformance import clients

    args = parsed(build_parser(), argv)
    if args is None:
        return 0
    names = [name.strip() for name in (args.client or "").split(",") if name.strip()]
    kinds = clients.chosen(names) if args.client is not None else list(clients.KINDS)
    if not kinds:
        raise UsageError("--client: no client named")
    if args.listed:
        print(listing(kinds))
        return 0
    return tried(args, kinds, ["ds4-server", "smoke", *argv])


def tried(args: Namespace, kinds: Sequence[Kind], command: Sequence[str]) -> int:
    """Run the ``kinds`` of clients and print the report; return the exit code. ``command``: the command line, for the
    report."""
    from ..conformance import results, runner

    url, apis = address(args.url), apis_of(args.api)
    work = Path(tempfile.mkdtemp(prefix="ds4-smoke-"))
    options = runner.Options(
        work, url, args.model_name or "", key_of(args), args.tokens or (THEIR_TOKENS if url else TOKENS), args.timeout,
        args.install, args.client is not None, command, apis,
    )  # fmt: skip
    try:
        report = runner.smoke(kinds, options, lambda line: say(PROG, line))
    finally:
        if args.keep:
            say(PROG, f"logs saved in {work}")
        else:
            shutil.rmtree(work, ignore_errors=True)
    print(json.dumps(report.document(), ensure_ascii=False) if args.json else results.table(report, stdout_width()))
    if report.interrupted:
        return EXIT_INTERRUPTED
    return 1 if report.failed else 0


def listing(kinds: Sequence[Kind]) -> str:
    """Return a table of the clients, showing which are installed."""
    from ..conformance.install import installed

    head = [Column("client"), Column("version"), Column("from", 2), Column("MB", 3, right=True), Column("installed"),
            Column("what it is", 1, least=12)]  # fmt: skip
    rows = []
    for kind in kinds:
        place = installed(kind)
        installed_here = "no" if place is None else "yes"
        source = f"{kind.registry} {kind.package}".strip() or "ds4ref"
        rows.append([kind.name, kind.version, source, str(kind.size or ""), installed_here, kind.about])
    return fitted(head, rows, stdout_width())


def address(url: str | None) -> str:
    """Return the root URL of the server to test, "" to start ds4-server; raise UsageError for an invalid URL."""
    if url is None:
        return ""
    from urllib.parse import urlsplit

    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError(f"--url {printable(url)}: expected an address like http://127.0.0.1:8080")
    return url.rstrip("/").removesuffix("/v1")


def apis_of(names: str | None) -> tuple[str, ...]:
    """Return the APIs to test, () for all of them; raise UsageError for an unknown name."""
    from ..conformance.checks import groups

    if names is None:
        return ()
    known = [group.name for group in groups() if group.path]
    chosen = tuple(name.strip() for name in names.split(",") if name.strip())
    wrong = [name for name in chosen if name not in known]
    if wrong or not chosen:
        raise UsageError(f"--api {printable(wrong[0] if wrong else names)}: choose from {', '.join(known)}")
    return chosen
