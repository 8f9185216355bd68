"""Explain another engine's log probabilities: by its rounding, by a mistake, or by nothing known.

A rounding set says where an engine rounds intermediates, and to which type; a fault is one known mistake in the model's
forward pass. The model is run with every rounding set and fault, and the runs are compared with the observed numbers.

signatures    log probabilities of these runs, cached on disk
evidence      likelihood: distance of an observation from a run, in units of the distance between correct engines
case          one observation and its candidate explanations
search        which candidates are computed, and in what order
fitting       faults with a numeric parameter
outside       mistakes outside the forward pass: shifted rows or columns, scaled logits
prompts       mistakes in tokenizing a prompt or rendering its chat template
calibration   priors, and the confidence of a verdict
posterior     prior times likelihood, and the rule that chooses the verdict
decide        the verdict in words
limit         detection limit of a verdict without a mistake
verdict       fields of the result
"""

from .decide import diagnose
from .signatures import Pass, Signatures
from .verdict import Diagnosis

__all__ = ["Diagnosis", "Pass", "Signatures", "diagnose"]
