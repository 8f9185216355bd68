"""Checks of a server over plain HTTP.

Each module has the checks of one API. A check is a function of a ``Talk`` that returns (pass), raises Wrong with the
observed result, or raises Skip with the reason; its docstring is the expectation in the report. A check is ``required``
if a client in use today breaks when it fails. A check of an optional feature raises NotOffered if the server refuses
the feature or shows no sign of it: that counts as a skip, but for ds4-server, which must have it, as a failure. If a
server has a feature, it must be right.

said      the content of an answer, whatever its API, streamed or not
shapes    the JSON documents of the four APIs as types
shared    the checks that are the same for every API
general   checks of models, tokens and unknown paths
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from msgspec import ValidationError

from ..results import FEATURES, Check, Client, State
from ..talk import NotOffered, Skip, Talk, Wrong, shown

Run = Callable[[Talk], None]


@dataclass(frozen=True)
class Spec:
    """A registered check.

    name       "API.function"
    feature    the feature that it tests, one of ``results.FEATURES``
    clients    names of the clients that need it, separated by spaces
    expected   the expectation, for the report
    run        the check's function
    required   whether a client that is in use breaks if the check fails
    how        "forced" if the request demands a certain form of the answer, else ""
    """

    name: str
    feature: str
    clients: str
    expected: str
    run: Run
    required: bool = True
    how: str = ""


@dataclass(kw_only=True)
class Checks:
    """The registry of one API's checks, in order of definition; ``path``: the API's endpoint, "" for none."""

    name: str
    path: str = ""
    specs: list[Spec] = field(default_factory=list)

    def check(self, feature: str, clients: str, *, required: bool = True, how: str = "") -> Callable[[Run], Run]:
        """Register the decorated function as a check, with its docstring as the expectation; parameters as in Spec."""

        def add(run: Run) -> Run:
            self.add(run.__name__, feature, clients, run.__doc__ or "", run, required, how)
            return run

        return add

    def add(self, name: str, feature: str, clients: str, expected: str, run: Run, *more: bool | str) -> None:
        """Register a check; ``more``: ``required`` and ``how``, the other parameters as in Spec."""
        assert feature in FEATURES and all(spec.name != f"{self.name}.{name}" for spec in self.specs), name
        told = " ".join(expected.split()).removesuffix(".")
        self.specs.append(Spec(f"{self.name}.{name}", feature, clients, told, run, *more))  # type: ignore[arg-type]

    def client(self, talk: Talk, must: bool = False) -> Client:
        """Run all checks of this API; return their results as one row of the report.

        If the endpoint does not exist they are skipped. ``must``: the server must offer everything, so run them anyway.
        """
        row, begun = Client(f"http {self.name}", "plain"), time.monotonic()
        if not must and self.path and not talk.offers(self.path):
            row.skipped = f"there is no {self.path} (HTTP {talk.ask(self.path, {}).status})"
        else:
            row.checks += (tried(spec, talk, must) for spec in self.specs)
        row.seconds = round(time.monotonic() - begun, 1)
        return row


def tried(spec: Spec, talk: Talk, must: bool = False) -> Check:
    """Run one check and return its result; NotOffered is a skip, or if the server ``must`` offer all, a failure."""
    begun = time.monotonic()
    state: State = "ok"
    got = ""
    try:
        spec.run(talk)
    except (Wrong, ValidationError) as wrong:
        state, got = "fail", shown(str(wrong))
    except NotOffered as nothing:
        state, got = "fail" if must else "skip", f"not offered: {nothing}"
    except Skip as skip:
        state, got = "skip", str(skip)
    except (LookupError, TypeError, AttributeError, ValueError) as error:
        # the answer has a shape that the check did not expect
        state, got = "fail", f"another shape ({type(error).__name__}: {shown(str(error))})"
    expected = f"{spec.expected} (for {spec.clients.replace(' ', ', ')})"
    seconds = round(time.monotonic() - begun, 2)
    return Check(spec.name, spec.feature, state, spec.required, expected, got, spec.how, seconds)


def groups(apis: Sequence[str] = ()) -> list[Checks]:
    """Return the registries of checks: of each API, or of those in ``apis``, and the general one."""
    from . import chat, completions, general, messages, responses

    every = [general.api, chat.api, completions.api, responses.api, messages.api]
    return [one for one in every if not apis or not one.path or one.name in apis]
