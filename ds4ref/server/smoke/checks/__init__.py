"""What plain HTTP shows of a server, one small check at a time.

Each module has the checks of one API, and says in its ``PATH`` where that is. A check is a function of a ``Talk`` that
ends, raises Wrong with what came instead, or raises Skip with why it cannot be tried; its name, what it belongs to and
what it expects stand over it. ``required`` are those without which a client that was seen to be used today breaks.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import ModuleType

from ..results import FEATURES, Check, Client, State
from ..talk import Skip, Talk, Wrong, shown

Run = Callable[[Talk], None]


@dataclass(frozen=True)
class Spec:
    """A check that can be run. Its name is that of its function, with its API before it."""

    name: str
    feature: str
    expected: str
    run: Run
    required: bool
    how: str


class Checks:
    """Those of one API, in order."""

    def __init__(self, name: str, path: str):
        self.name, self.path = name, path
        self.specs: list[Spec] = []

    def __call__(self, feature: str, *, required: bool = True, how: str = "") -> Callable[[Run], Run]:
        """Decorator: enter a check, whose docstring says what is expected."""
        assert feature in FEATURES, feature

        def add(run: Run) -> Run:
            name = f"{self.name}.{run.__name__}"
            assert all(spec.name != name for spec in self.specs), name
            expected = " ".join((run.__doc__ or "").split()).removesuffix(".")
            self.specs.append(Spec(name, feature, expected, run, required, how))
            return run

        return add

    def client(self, talk: Talk, must: bool = False) -> Client:
        """The row of this API. Unless it ``must`` be there, one that is not is skipped."""
        made, begun = Client(f"http {self.name}", "plain"), time.monotonic()
        if not must and self.path and not talk.offers(self.path):
            made.skipped = f"there is no {self.path} (HTTP {talk.ask(self.path, {}).status})"
        else:
            made.add(*(tried(spec, talk) for spec in self.specs))
        made.seconds = round(time.monotonic() - begun, 1)
        return made


def tried(spec: Spec, talk: Talk) -> Check:
    """What became of one check."""
    begun = time.monotonic()
    state: State = "ok"
    got = ""
    try:
        spec.run(talk)
    except Wrong as wrong:
        state, got = "fail", str(wrong)
    except Skip as skip:
        state, got = "skip", str(skip)
    except (LookupError, TypeError, AttributeError, ValueError) as error:
        # an answer of another shape than any reader expects: the check could not even look
        state, got = "fail", f"another shape ({type(error).__name__}: {shown(str(error))})"
    seconds = round(time.monotonic() - begun, 2)
    return Check(spec.name, spec.feature, state, spec.required, spec.expected, got, spec.how, seconds)


def modules() -> Iterator[ModuleType]:
    """The APIs, in the order of the table."""
    from . import chat, completions, general, messages, responses

    yield from (general, chat, completions, responses, messages)


def groups() -> list[Checks]:
    """The checks of each."""
    return [module.check for module in modules()]
