"""Variants of the model with deliberate mistakes (faults) or roundings, which a diagnosis compares with other engines.

LIBRARY    all single faults by name (library)
ROUNDING   named rounding sets: our three numerics modes, and the roundings of other engines (rounding)
COMPUTING  engines that compute in a 16-bit type; SETS are both
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
