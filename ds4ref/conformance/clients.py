"""The table of clients and their pinned versions.

    find("codex"), find("pi@1.5.2"), find("pi@latest")

Clients missing from this interpreter are installed into the user's cache (``install``), nowhere else. Sizes are
in MB of installed files, rounded.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from ..errors import UsageError
from ..nano.cache import cache_dir

NODE = "node@22.23.3"
"""npm package with a Node.js binary, for clients that need a recent Node.js."""


@dataclass(frozen=True)
class Kind:
    """A client of the table.

    name       its name on the command line and in the report
    registry   "pip" or "npm", "" for checks that come with ds4ref
    package    name of the package in the registry
    version    pinned version
    runs       "checks" over plain HTTP, a "probe" script in its own interpreter, or an "agent" (a program)
    about      description for --list
    apis       APIs over which the client is run, each in its own row of the report; "score": scoring of completions
    wide       whether one run tests several APIs, regardless of which the user chose
    more       requirements installed beside the client
    scripted   whether it needs a server with scripted answers, since nothing else would make the model call a tool
    size       MB installed
    quick      whether the client belongs to QUICK
    """

    name: str
    registry: str
    package: str
    version: str
    runs: str
    about: str
    apis: tuple[str, ...] = ("chat",)
    wide: bool = False
    more: tuple[str, ...] = ()
    scripted: bool = False
    size: int = 0
    quick: bool = False

    @property
    def folder(self) -> str:
        """Name of the client's folder in the cache."""
        return f"{self.name}-{self.version}"

    @property
    def requirement(self) -> str:
        """The package with its version, as pip or npm takes it."""
        return f"{self.package}{'==' if self.registry == 'pip' else '@'}{self.version}"


APIS = ("chat", "responses", "messages")

KINDS = (
    Kind("http", "", "", "", "checks", "every check of plain HTTP, API by API", quick=True),
    Kind("openai", "pip", "openai", "3.54.0", "probe", "OpenAI's SDK: chat, responses, completions", wide=True,
         size=70, quick=True),
    Kind("anthropic", "pip", "anthropic", "2.14.0", "probe", "Anthropic's SDK: messages", ("messages",), size=70,
         quick=True),
    Kind("lm-eval", "pip", "lm_eval[api]", "0.4.13", "agent", "lm-evaluation-harness: local-completions, also chat",
         ("score",), wide=True, size=760),
    Kind("codex", "npm", "@openai/codex", "0.169.0", "agent", "Codex CLI", ("responses",), scripted=True,
         size=404),
    Kind("claude", "npm", "@anthropic-ai/claude-code", "2.1.330", "agent", "Claude Code", ("messages",),
         scripted=True, size=364),
    Kind("opencode", "npm", "opencode-ai", "1.18.33", "agent", "opencode", scripted=True, size=354),
    Kind("pi", "npm", "@earendil-works/pi-coding-agent", "0.87.1", "agent", "pi", apis=APIS, more=(NODE,),
         scripted=True, size=330),
)  # fmt: skip
"""All clients, in the order of running and of the report."""

QUICK = tuple(kind.name for kind in KINDS if kind.quick)
"""Names of the clients that together take about two minutes."""


def find(name: str) -> Kind:
    """Return the client named ``NAME`` or ``NAME@VERSION``; raises UsageError, listing all names, for others."""
    bare, _, version = name.partition("@")
    for kind in KINDS:
        if kind.name == bare:
            if version and not kind.registry:
                raise UsageError(f"{bare} has no versions")
            return replace(kind, version=version) if version else kind
    raise UsageError(f"--client {name}: there are quick ({', '.join(QUICK)}), {', '.join(k.name for k in KINDS)}")


def chosen(names: Iterable[str]) -> list[Kind]:
    """Return the named clients in order, without duplicates; the name "quick" stands for those in QUICK."""
    kinds: dict[str, Kind] = {}
    for name in names:
        for one in QUICK if name == "quick" else (name,):
            kind = find(one)
            kinds.setdefault(f"{kind.name}@{kind.version}", kind)
    return list(kinds.values())


def home() -> str:
    """Return the folder where clients are installed."""
    return str(cache_dir() / "clients")
