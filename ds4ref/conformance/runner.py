"""Runs clients against a server and collects a report.

    report = smoke(kinds, Options(...), tell=print)

Without a URL, ds4-server is started when the first client needs it, and stopped after the last one; whether it stops
properly is also checked. Clients run one after the other, so that results do not depend on load.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from ..errors import Ds4Error
from ..runs.provenance import stamp
from . import agents, harnesses, install
from .checks import groups
from .clients import Kind
from .results import INTERRUPTED, Check, Client, Report
from .servers import Own
from .talk import Talk, shown

CTX, LONG_CTX = 8192, 65536
"""Context lengths in tokens of the servers that we start: for short questions, and for agents, whose first prompts are
long."""
PROBES = Path(__file__).parent / "probes"
DEFAULT_CTX = 131072
"""Context length in tokens assumed if a server does not report it."""


@dataclass(frozen=True)
class Options:
    """Options of a run.

    work       folder for files of the run
    url        address of the server to test, "" to start ds4-server
    model      model to request, "" for the first that the server lists
    key        API key, "" for none
    tokens     limit on the length of an answer in tokens
    timeout    seconds for each request or command
    install    whether to install missing clients
    named      whether the user chose the clients; then a client that cannot run counts as a failure
    command    command line recorded in the report
    apis       the APIs to test, empty for all; SDKs that support several always test all of theirs
    """

    work: Path
    url: str = ""
    model: str = ""
    key: str = ""
    tokens: int = 200
    timeout: float = 300.0
    install: bool = False
    named: bool = False
    command: Sequence[str] = ("ds4-server", "smoke")
    apis: tuple[str, ...] = ()


def smoke(kinds: Sequence[Kind], options: Options, tell: Callable[[str], None] = lambda line: None) -> Report:
    """Run the clients ``kinds`` and return the report; ``tell`` receives a progress line before and after each."""
    rows: list[Client] = []
    begun = stamp(options.command)  # the working tree may change during the run
    with ExitStack() as stack:
        servers = Servers(options, stack)
        kind = kinds[0]
        try:
            for kind in kinds:
                for row in _run(kind, options, servers, tell):
                    state = row.skipped or f"{len(row.checks) - len(row.failed)} of {len(row.checks)}"
                    tell(f"{row.name} {row.version}: {state}")
                    rows.append(row)
        except KeyboardInterrupt:
            # keep the results so far; the remaining clients count as skipped
            for rest in kinds[kinds.index(kind) :]:
                rows.append(Client(rest.name, rest.version, skipped=INTERRUPTED))
    rows += [own.end for own in servers.own.values() if own.end is not None]
    return Report(servers.facts(), begun, rows)


class Servers:
    """The server under test: the one at the given URL, or ds4-server processes, which are started when needed.

    ``stack``: stops the processes and closes connections at the end.
    """

    def __init__(self, options: Options, stack: ExitStack):
        self.options, self.stack = options, stack
        self.own: dict[bool, Own] = {}
        self.talks: dict[str, Talk] = {}

    def talk(self, scripted: bool) -> Talk:
        """Return the connection to the server; without a URL, to a ds4-server with scripted answers if ``scripted``."""
        o = self.options
        url = o.url
        if not url:
            if scripted not in self.own:
                ctx = LONG_CTX if scripted else CTX
                own = Own(o.work, scripted=scripted, ctx=ctx)
                self.own[scripted] = self.stack.enter_context(own)
            url = self.own[scripted].url
        if url not in self.talks:
            talk = Talk(url, o.model, o.key, tokens=o.tokens, timeout=o.timeout)
            self.talks[url] = talk
            self.stack.callback(talk.close)
        return self.talks[url]

    def facts(self) -> dict[str, object]:
        """Return the identity of the server for the report."""
        if not self.options.url:
            return {"name": "ds4-server", "model": "embedded"}
        talk = self.talk(False)
        name = talk.models.headers.get("server", "")
        # some servers name a model by its file: drop the private folder
        model = os.path.basename(talk.model) if os.path.isabs(talk.model) else talk.model
        return {"name": name, "url": self.options.url, "model": model}


def _run(kind: Kind, o: Options, servers: Servers, tell: Callable[[str], None]) -> Iterator[Client]:
    """Run one client, installing it if that is allowed and necessary; yield its rows of the report."""
    place = install.installed(kind)
    if place is None and o.install:
        tell(f"installing {kind.name} {kind.version} (about {kind.size} MB)")
        try:
            with open(o.work / f"install-{kind.name}.log", "w") as log:
                place = install.install(kind, log)
        except Ds4Error as error:
            yield _skipped(kind, str(error), o)
            return
    if place is None:
        yield _skipped(kind, f"not installed; --install takes it from {kind.registry} ({kind.size} MB)", o)
        return
    tell(f"{kind.name} {place.version}".rstrip())
    if kind.runs == "checks":
        talk = servers.talk(False)
        yield from (group.client(talk, must=not o.url) for group in groups(o.apis))
        return
    for api in kind.apis:
        label = api if len(kind.apis) > 1 else ""
        row, begun = Client(f"{kind.name} {label}".rstrip(), place.version), time.monotonic()
        if o.apis and not kind.wide and api not in o.apis:
            row.skipped = f"it speaks {api}, which --api leaves out"
            yield row
            continue
        work = o.work / row.name.replace(" ", "-")
        work.mkdir()
        talk = servers.talk(kind.scripted and not o.url)
        path = PATHS[api]
        if o.url and not (talk.ask(path).status == 200 if api == "score" else talk.offers(path)):
            row.skipped = f"it needs {path}, which is not there"
        elif kind.runs == "probe":
            row.checks += probe(kind, place, work, talk, o)
        else:
            setting = agents.Setting(
                place, work, talk.url, talk.model, talk.ctx or DEFAULT_CTX, o.key or agents.DUMMY,
                led=not o.url and kind.scripted, timeout=o.timeout,
            )  # fmt: skip
            row.checks += (harnesses.lm_eval if kind.name == "lm-eval" else agents.agent)(kind, label, setting)
        row.seconds = round(time.monotonic() - begun, 1)
        yield row


PATHS = {
    "chat": "/v1/chat/completions", "responses": "/v1/responses", "messages": "/v1/messages",
    "score": "/tokenizer_info",
}  # fmt: skip


def _skipped(kind: Kind, why: str, o: Options) -> Client:
    """Return the row of a client that could not run: a failure if the user named it, else a skip."""
    row = Client(kind.name, kind.version)
    if o.named:
        row.checks.append(Check(f"{kind.name}.start", "start", "fail", True, "it is there", why))
    else:
        row.skipped = why
    return row


def probe(kind: Kind, place: install.Place, work: Path, talk: Talk, o: Options) -> list[Check]:
    """Run the probe script that tests an SDK, in the interpreter in which the SDK is installed; return its checks.

    kind, place: the SDK and where it is installed; work: folder for the results and the log; talk: the server.
    """
    out = work / "checks.jsonl"
    command = [place.python, str(PROBES / f"{kind.name}_sdk.py"), str(out), talk.url, talk.model, str(o.tokens)]
    env = {k: v for k, v in os.environ.items() if not k.upper().endswith("_PROXY") and k != "PYTHONPATH"}
    env |= {"SMOKE_KEY": o.key, "SMOKE_TIMEOUT": str(o.timeout), "NO_PROXY": "*"}
    ended = ""
    try:
        with open(work / "probe.log", "wb") as log:
            done = subprocess.run(
                command, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, timeout=o.timeout * 2
            )
        ended = f"exit code {done.returncode}" if done.returncode else ""
    except subprocess.TimeoutExpired:
        ended = f"no end within {o.timeout * 2:.0f} s (--timeout gives more time)"
    lines = out.read_text().splitlines() if out.exists() else []
    checks = [Check(**json.loads(line)) for line in lines]
    if ended or not checks:
        log_text = shown((work / "probe.log").read_text(errors="replace")[-300:])
        got = f"{ended or 'no check was run'}: {log_text or 'nothing'}"
        checks.append(Check(f"{kind.name}.end", "turn", "fail", True, "the script comes to its end", got))
    return checks
