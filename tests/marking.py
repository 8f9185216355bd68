"""Which cases of a parametrized test run in ``make test``."""

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
