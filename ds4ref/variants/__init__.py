"""The model with deliberate mistakes and roundings, for comparison with other engines in a diagnosis.

rounding   named rounding sets: the three modes, and what other engines round
runner     logits of any combination of rounding set, faults and float noise
LIBRARY    the single faults by name (library)
"""

from __future__ import annotations

from .faults import Fault
from .library import LIBRARY
from .rounding import MODE_NAMES, ROUNDING, RoundingSet
from .runner import Runner, code_digest

__all__ = ["LIBRARY", "MODE_NAMES", "ROUNDING", "Fault", "Runner", "RoundingSet", "code_digest"]
