"""Variants of the model with deliberate mistakes (faults) or roundings, which a diagnosis compares with other engines.

LIBRARY    all single faults by name (library)
ROUNDING   named rounding sets: our three numerics modes, and the roundings of other engines (rounding)
Runner     logits for any combination of rounding set, faults and float noise (runner)
"""

from __future__ import annotations

from .faults import Fault
from .library import LIBRARY
from .rounding import MODE_NAMES, ROUNDING, RoundingSet
from .runner import Runner, code_digest

__all__ = ["LIBRARY", "MODE_NAMES", "ROUNDING", "Fault", "Runner", "RoundingSet", "code_digest"]
