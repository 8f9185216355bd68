"""How long an examination will take: said before its stages run, and kept to.

``COSTS`` has what each stage takes, counted by ``python -m benchmarks.doctor_time --costs``. With the target's pace
(``pace``) they become seconds. If all stages together exceed the total limit, later ones are left out until the rest
fits: ``run.STEPS`` is in order of value.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from ds4ref.console.common import duration
from ds4ref.errors import Ds4Error

from .case import ExamContext
from .pace import PASS, PASS_SECONDS, Cost, Pace, Sample
from .repeat import prompt_of

FORMS = ("quick", "usual", "long")
COSTS: dict[str, tuple[Cost, Cost, Cost]] = {
    "identify": (Cost(40, 1500, 435, 5),) * 3,
    "tokenizer": (Cost(6, 230, 6), Cost(10, 420, 10), Cost(10, 420, 10)),
    "template": (Cost(5, 100, 5), Cost(6, 150, 37, 15), Cost(6, 150, 37, 15)),
    "numbers": (Cost(2, 240, 33, 20, True), Cost(6, 700, 99, 60, True), Cost(8, 900, 132, 80, True)),
    "determinism": (Cost(3, 474, 72), Cost(4, 640, 96), Cost(4, 640, 96)),
    "ways": (Cost(9, 1000, 56, 3, True), Cost(26, 3500, 84, 4, True), Cost(26, 3500, 84, 4, True)),
    "load": (Cost(140, 40000, 3400), Cost(290, 80000, 7000), Cost(290, 80000, 7000)),
    "api": (Cost(123, 21000, 8700),) * 3,
