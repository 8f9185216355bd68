"""Checks of a server over plain HTTP.

Each module has the checks of one API, at its ``PATH``. A check is a function of a ``Talk`` that returns (pass), raises
Wrong with the observed result, or raises Skip with the reason; its docstring is the expectation in the report. A check
is ``required`` if a client in use today breaks without it. What an API need not have raises NotOffered where a server
refuses it or shows no sign of it: of any server that is a skip, of ours, which has to have it, a failure. What a server
does offer has to be right.

Each check names the fields that it reads, and the clients that read them (``CLIENTS``; ``ds4-server smoke checks``).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import ModuleType

from ..results import FEATURES, Check, Client, State
from ..talk import NotOffered, Skip, Talk, Wrong, shown

Run = Callable[[Talk], None]

CLIENTS = {
    "codex": "Codex CLI",
    "claude": "Claude Code",
    "opencode": "opencode",
    "pi": "pi",
    "qwen": "Qwen Code",
    "openai": "OpenAI's SDKs, and what is built on them",
    "anthropic": "Anthropic's SDKs",
    "litellm": "LiteLLM",
    "inspect": "inspect_ai",
    "lm-eval": "lm-evaluation-harness",
    "llm": "llm",
    "aider": "aider",
}
"""The clients that checks speak of."""


@dataclass(frozen=True)
class Spec:
    """A registered check.

    name       API.function
    feature    a key of ``results.FEATURES``
    expected   the expectation, for the report
    required   whether a client in use breaks if the check fails
    how        "forced" if the request demands the form of the answer
    reads      the fields of the answer that it looks at
    clients    names of the clients that need them, of CLIENTS
    """

    name: str
    feature: str
    expected: str
    run: Run
    required: bool
    how: str
    reads: str
    clients: tuple[str, ...]


class Checks:
    """The registry of one API's checks, in order of definition."""

    def __init__(self, name: str, path: str):
        self.name, self.path = name, path
        self.specs: list[Spec] = []

    def __call__(
        self, feature: str, reads: str, clients: str, *, required: bool = True, how: str = ""
    ) -> Callable[[Run], Run]:
        """Register the decorated check; its docstring is the expectation. ``clients``: separated by spaces."""
        assert feature in FEATURES, feature
        needed = tuple(clients.split())
        assert needed and set(needed) <= set(CLIENTS), clients

        def add(run: Run) -> Run:
            name = f"{self.name}.{run.__name__}"
            assert all(spec.name != name for spec in self.specs), name
            expected = " ".join((run.__doc__ or "").split()).removesuffix(".")
            self.specs.append(Spec(name, feature, expected, run, required, how, reads, needed))
            return run

        return add

    def client(self, talk: Talk, must: bool = False) -> Client:
        """Run all checks of this API; return their results as one row of the report.

        If the endpoint does not exist they are skipped, unless it ``must`` exist.
        """
        row, begun = Client(f"http {self.name}", "plain"), time.monotonic()
        if not must and self.path and not talk.offers(self.path):
            row.skipped = f"there is no {self.path} (HTTP {talk.ask(self.path, {}).status})"
        else:
            row.add(*(tried(spec, talk, must) for spec in self.specs))
        row.seconds = round(time.monotonic() - begun, 1)
        return row


def tried(spec: Spec, talk: Talk, must: bool = False) -> Check:
    """Run one check and return its result; what is not offered is a failure of a server that ``must`` offer all."""
    begun = time.monotonic()
    state: State = "ok"
    got = ""
    try:
        spec.run(talk)
    except Wrong as wrong:
        state, got = "fail", str(wrong)
    except NotOffered as nothing:
        state, got = "fail" if must else "skip", f"not offered: {nothing}"
    except Skip as skip:
        state, got = "skip", str(skip)
    except (LookupError, TypeError, AttributeError, ValueError) as error:
        # the answer has an unexpected shape, which the check did not test for
        state, got = "fail", f"another shape ({type(error).__name__}: {shown(str(error))})"
    seconds = round(time.monotonic() - begun, 2)
    return Check(spec.name, spec.feature, state, spec.required, spec.expected, got, spec.how, seconds)


def modules() -> Iterator[ModuleType]:
    """Yield the modules of checks, in the order of the table."""
    from . import chat, completions, general, messages, responses

    yield from (general, chat, completions, responses, messages)


def groups(apis: Sequence[str] = ()) -> list[Checks]:
    """Return the registry of checks of each API, or of those named, and of what belongs to no single one."""
    every = [module.check for module in modules()]
    return [one for one in every if not apis or not one.path or one.name in apis]
