"""Which cases of a parametrized test run in ``make test``, and which files a run need not import."""

import re
import zlib
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import pytest


def sampled(
    cases: Iterable[Any], keep: Collection[Any] | int, others: pytest.MarkDecorator = pytest.mark.thorough
) -> list[Any]:
    """Mark cases ``thorough`` (or ``others``) but for those in ``keep``, or for every ``keep``-th."""
    params = []
    for number, case in enumerate(cases):
        kept = number % keep == 0 if isinstance(keep, int) else case in keep
        if hasattr(case, "marks"):
            param = case
        else:
            param = pytest.param(*(case if isinstance(case, tuple) else (case,)))
        params.append(param if kept else param._replace(marks=(*param.marks, others)))
    return params


def spread(items: Sequence[pytest.Item], most: int) -> list[pytest.Item]:
    """Return at most ``most`` cases of each test, the first and the last among them, in the order they had.

    Compiled kernels keep all: Numba compiles them from the bytecode that is this Python's.
    """
    tests: dict[str, list[pytest.Item]] = {}
    for item in items:
        tests.setdefault(item.nodeid.partition("[")[0], []).append(item)
    kept: set[pytest.Item] = set()
    for name, cases in tests.items():
        last = len(cases) - 1
        few = last < most or name.startswith("tests/kernels/")
        kept.update(cases if few else (cases[last * place // max(most - 1, 1)] for place in range(most)))
    return [item for item in items if item in kept]


def part(items: Sequence[pytest.Item], place: int, of: int) -> list[pytest.Item]:
    """Return the items of one in ``of`` files, in the order they had: of ``of`` successive places each item is in one.

    Whole files, as their tests share what takes longest (compiled kernels, opened models, a server's answers). Names
    decide, not the order, so a file that comes or goes moves no other.
    """
    return [item for item in items if (zlib.crc32(item.nodeid.partition("::")[0].encode()) + place) % of == 0]


WRITTEN = ("oracle", "thorough", "slow", "peers", "network")
"""Marks that a test has only where its own file names them (``test_marking.py``); ``sampled`` gives ``thorough``."""


def unasked(text: str, expression: str) -> bool:
    """Say whether none of the tests of a file with this text can be among those that ``-m expression`` asks for.

    Such a file is not imported: a run for the oracles needs 23 of 370. Anything but marks and ``not`` marks joined by
    ``and`` asks for every file.
    """
    terms = expression.split(" and ")
    if not all(re.fullmatch(r"(not )?\w+", term) for term in terms):
        return False
    of_all = re.search(r"^pytestmark = pytest\.mark\.(\w+)$", text, re.M)
    if of_all and f"not {of_all[1]}" in terms:
        return True
    return any(
        not re.search(rf"\bmark\.{mark}\b" + (r"|\bsampled\(" if mark == "thorough" else ""), text)
        for mark in WRITTEN
        if mark in terms
    )
