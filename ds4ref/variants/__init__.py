"""Variants of the model with injected bugs ("faults") or with the roundings of other engines.

A diagnosis compares their logits with another engine's, to find out which bug that engine has, or how it rounds.

LIBRARY    all single faults by name (library)
ROUNDING   rounding sets by name: where an engine rounds intermediate values, and how (rounding)
COMPUTING  rounding sets of engines that compute in a 16-bit type throughout; SETS are those of both tables
Runner     logits for any combination of rounding set, faults and float noise (runner)
"""

from __future__ import annotations

from .faults import Fault
from .library import LIBRARY
from .rounding import COMPUTING, MODE_NAMES, ROUNDING, SETS, RoundingSet
from .runner import Runner, code_digest

__all__ = [
    "COMPUTING", "LIBRARY", "MODE_NAMES", "ROUNDING", "SETS", "Fault", "RoundingSet", "Runner", "code_digest",
]  # fmt: skip
