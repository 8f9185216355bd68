"""One run: servers, clients, a report.

    report = smoke(kinds, Options(...), tell=print)

Ours are started when the first client needs them and ended behind the last one, which is a check of its own. Clients
run one after the other: what they find is about them, not about load.
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

from ...errors import Ds4Error
from ...runs.provenance import stamp
from . import agents, harnesses, install
from .checks import groups
from .clients import Kind
from .results import INTERRUPTED, Check, Client, Report
from .servers import Own
from .talk import Talk, shown

CTX, LONG_CTX = 8192, 65536
"""Context of our own servers: for short questions, and for agents, whose first prompt alone has ten thousands."""
PROBES = Path(__file__).parent / "probes"
SCRIPTS = {"requests": "requests_plain.py", "openai": "openai_sdk.py", "anthropic": "anthropic_sdk.py"}
DEFAULT_CTX = 131072
"""What agents are told of a server that does not tell its context."""


@dataclass(frozen=True)
class Options:
    """``url`` "": our own servers. ``named``: these clients were asked for one by one, so they have to run."""

    work: Path
    url: str = ""
    model: str = ""
    key: str = ""
    tokens: int = 200
    timeout: float = 300.0
    install: bool = False
    named: bool = False
    threads: int | None = None
    command: Sequence[str] = ("ds4-server", "smoke")
    label: str = ""


def smoke(kinds: Sequence[Kind], options: Options, tell: Callable[[str], None] = lambda line: None) -> Report:
    """Run all of ``kinds``; ``tell`` hears of each as it begins and ends."""
    rows: list[Client] = []
    begun = stamp(options.command)  # the tree may be another one by the end
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
            # what was found is kept, and who did not get their turn has not passed
            for rest in kinds[kinds.index(kind) :]:
                rows.append(Client(rest.name, rest.version, skipped=INTERRUPTED))
    rows += [own.end for own in servers.own.values() if own.end is not None]
    return Report(servers.facts(), begun, rows)


class Servers:
    """The server that a client talks to: the given one, or one of ours."""

    def __init__(self, options: Options, stack: ExitStack):
        self.options, self.stack = options, stack
        self.own: dict[bool, Own] = {}
        self.talks: dict[str, Talk] = {}

    def talk(self, scripted: bool) -> Talk:
        """What is said to it over plain HTTP, which also knows its model and context."""
        o = self.options
        url = o.url
        if not url:
            if scripted not in self.own:
                ctx = LONG_CTX if scripted else CTX
                made = Own(o.work, scripted=scripted, ctx=ctx, threads=o.threads)
                self.own[scripted] = self.stack.enter_context(made)
            url = self.own[scripted].url
        if url not in self.talks:
            talk = Talk(url, o.model, o.key, tokens=o.tokens, timeout=o.timeout)
            self.talks[url] = talk
            self.stack.callback(talk.close)
        return self.talks[url]

    def facts(self) -> dict[str, object]:
        """What the report says of it."""
        label = {"label": self.options.label} if self.options.label else {}
        if not self.options.url:
            return {"name": "ds4-server", "model": "embedded", **label}
        talk = self.talk(False)
        name = talk.models.headers.get("server", "")
        # some servers call a model by its file: where that lies is nobody's business
        model = os.path.basename(talk.model) if os.path.isabs(talk.model) else talk.model
        return {"name": name, "url": self.options.url, "model": model, **label}


def _run(kind: Kind, o: Options, servers: Servers, tell: Callable[[str], None]) -> Iterator[Client]:
    """The rows of one client."""
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
        yield from (group.client(talk, must=not o.url) for group in groups())
        return
    for api in kind.apis or ("",):
        row, begun = Client(f"{kind.name} {api}".rstrip(), place.version), time.monotonic()
        work = o.work / row.name.replace(" ", "-")
        work.mkdir()
        talk = servers.talk(kind.scripted and not o.url)
        missing = _missing(kind, api, talk)
        if missing and o.url:
            row.skipped = missing
        elif kind.runs == "probe":
            row.add(*probe(kind, place, work, talk, o))
        else:
            setting = agents.Setting(
                place, work, talk.url, talk.model, talk.ctx or DEFAULT_CTX, o.key or agents.DUMMY,
                led=not o.url and kind.scripted, timeout=o.timeout,
            )  # fmt: skip
            row.add(*harnesses.HARNESSES.get(kind.name, agents.agent)(kind, api, setting))
        row.seconds = round(time.monotonic() - begun, 1)
        yield row


NEEDS = {"codex": "responses", "claude": "messages", "anthropic": "messages", "opencode": "chat", "lm-eval": "score"}
PATHS = {
    "chat": "/v1/chat/completions", "responses": "/v1/responses", "messages": "/v1/messages",
    "score": "/tokenizer_info",
}  # fmt: skip


def _missing(kind: Kind, api: str, talk: Talk) -> str:
    """What this client needs and the server has not; "" if nothing."""
    need = api or NEEDS.get(kind.name, "chat")
    path = PATHS[need]
    there = talk.ask(path).status == 200 if need == "score" else talk.offers(path)
    return "" if there else f"it needs {path}, which is not there"


def _skipped(kind: Kind, why: str, o: Options) -> Client:
    """A row of a client that could not run. Who was asked for by name had to."""
    made = Client(kind.name, kind.version)
    if o.named:
        made.add(Check(f"{kind.name}.start", "start", "fail", True, "it is there", why))
    else:
        made.skipped = why
    return made


def probe(kind: Kind, place: install.Place, work: Path, talk: Talk, o: Options) -> list[Check]:
    """The checks of a script that runs in the client's own interpreter."""
    out = work / "checks.jsonl"
    command = [place.python, str(PROBES / SCRIPTS[kind.name]), str(out), talk.url, talk.model, str(o.tokens)]
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
        ended = f"no end within {o.timeout * 2:.0f} s"
    lines = out.read_text().splitlines() if out.exists() else []
    checks = [Check(**json.loads(line)) for line in lines]
    if ended or not checks:
        said = shown((work / "probe.log").read_text(errors="replace")[-300:])
        got = f"{ended or 'no check was run'}: {said or 'nothing'}"
        checks.append(Check(f"{kind.name}.end", "turn", "fail", True, "the script comes to its end", got))
    return checks
