"""Explaining another engine's numbers: rounding set, mistake, or none of these.

signatures   what our model computes with every rounding and every mistake, kept on disk
evidence     how far predictions lie from an observation, and how far a right engine's would
case         candidates for one observation;  search  which of them are tried
fitting      mistakes with a size;  outside, prompts  mistakes outside the model
decide       the verdict;  sight  what it could have seen;  calibration  what its confidence is worth
"""

from .decide import diagnose
from .signatures import Pass, Signatures
from .verdict import Diagnosis

__all__ = ["Diagnosis", "Pass", "Signatures", "diagnose"]
