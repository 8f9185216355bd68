"""Explaining another engine's numbers: rounding set, mistake, or none of these.

signatures    predictions of our model with every rounding and every mistake, cached
evidence      the likelihood: distance from an observation against that of right engines
case          candidates for one observation;  search  which of them are computed
fitting       mistakes with a size;  outside, prompts  mistakes outside the model
calibration   priors, and the confidence of a verdict
posterior     prior times likelihood, and the rule that decides
decide        the verdict in words;  sight  its detection limit;  verdict  its fields
files         differences of two model files
"""

from .decide import diagnose
from .signatures import Pass, Signatures
from .verdict import Diagnosis

__all__ = ["Diagnosis", "Pass", "Signatures", "diagnose"]
