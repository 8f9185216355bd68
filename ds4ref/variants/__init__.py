"""Variants of the model with injected bugs ("faults") or with the roundings of other engines.

A diagnosis compares their logits with another engine's, to find out which bug that engine has, or how it rounds.

LIBRARY    all single faults of V4 by name (library); V41: of V4.1; EVERY: of both
ROUNDING   rounding sets by name: where an engine rounds intermediate values, and how (rounding)
COMPUTING  rounding sets of engines that compute in a 16-bit type throughout; SETS are those of both tables
Runner     logits for any combination of rounding set, faults and float noise (runner)
"""

from __future__ import annotations

from .faults import Fault
from .library import EVERY, LIBRARY, V41
from .rounding import COMPUTING, MODE_NAMES, ROUNDING, SETS, RoundingSet
from .runner import Runner, code_digest

__all__ = [
    "COMPUTING", "EVERY", "LIBRARY", "MODE_NAMES", "ROUNDING", "SETS", "V41", "Fault", "RoundingSet", "Runner",
    "code_digest",
]  # fmt: skip
