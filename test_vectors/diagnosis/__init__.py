"""Explain another engine's log probabilities: by its rounding, by a mistake, or by nothing known.

A rounding set says where an engine rounds intermediates, and to which type ("exact", "ds4", "bfloat16"). A fault is
a known bug, injected into our forward pass. The model is run with every rounding set and fault; a run that gives the
observed numbers explains them.

signatures    log probabilities of these runs, cached on disk
evidence      likelihood: how far an observation is from a run, relative to how far correct engines are from each other
case          one observation and its candidate explanations
search        which candidates are computed, and in what order
fitting       faults with a numeric parameter (a wrong constant of the model)
outside       mistakes outside the forward pass: shifted rows or columns, scaled logits
prompts       mistakes in tokenizing a prompt or rendering its chat template
calibration   priors, and the confidence of a verdict
posterior     prior times likelihood, and the rule that chooses the verdict
decide        from the posterior to the verdict
places        where a mistake without a name may be: ops and layers, ranked
limit         the smallest mistake that a verdict "no mistake" would have detected
verdict       fields of the result
"""

from .decide import diagnose
from .signatures import Pass, Signatures
from .verdict import Diagnosis

__all__ = ["Diagnosis", "Pass", "Signatures", "diagnose"]
