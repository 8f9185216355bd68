"""Variants of the model with injected bugs ("faults") or with the roundings of other engines.

A diagnosis computes their logits and compares them with those of another engine, to find out which bug that engine has
or how it rounds.

LIBRARY    all single faults by name (library)
ROUNDING   rounding sets by name, each of which says where an engine rounds intermediate values and how: our three
           numerics modes, and those of other engines (rounding)
COMPUTING  rounding sets of engines that compute in a 16-bit type throughout; SETS are those of both tables
Runner     computes the logits for any combination of rounding set, faults and float noise (runner)
"""

from __future__ import annotations

from .faults import Fault
from .library import LIBRARY
from .rounding import COMPUTING, MODE_NAMES, ROUNDING, SETS, RoundingSet
from .runner import Runner, code_digest

__all__ = [
    "COMPUTING", "LIBRARY", "MODE_NAMES", "ROUNDING", "SETS", "Fault", "RoundingSet", "Runner", "code_digest",
]  # fmt: skip
