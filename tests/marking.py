"""Which cases of a parametrized test run in ``make test``, and which files a run need not import."""

import re
from collections.abc import Collection, Iterable
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
