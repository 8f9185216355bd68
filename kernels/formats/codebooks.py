"""Tables of the formats that store indices: found by clustering, so data of the format and not to be derived.

``iq2_xs`` (512, 8) and ``iq2_s`` (1024, 8): magnitudes 8, 25, 43. ``iq3_xxs`` (256, 4): 4 to 62. ``iq3_s`` (512, 4):
1 to 15. ``iq1`` (2048, 8): -1, 0, 1. Taken from gguf-py 0.19.0, and tested against it.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

with np.load(Path(__file__).with_suffix(".npz")) as _tables:
    BOOKS: dict[str, np.ndarray] = dict(_tables)
