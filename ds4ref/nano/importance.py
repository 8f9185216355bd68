"""Importance matrix of the embedded model, measured on texts like those that it was trained on."""

from __future__ import annotations

import os
import random
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ..archs import Model, arch_of
from ..backends import load_backend
from ..importance import MARKER, collect, prompts
from ..numerics import numerics
from ..session.session import Session
from ..text.vocabulary import open_tokenizer
from ..weights import open_source
from ..weights.quantize.imatrix import Imatrix
from ..weights.source import TensorSource

EPISODE, PIECE = 512, 1024
"""Approximate number of tokens of the conversation for one skill, and maximum number of tokens per session."""


@dataclass(frozen=True)
class _Observed:
    """The few attributes of an ``Engine`` that measuring importance needs; this package must not import ``Engine``,
    which depends on it."""

    source: TensorSource
    model: Model
    backend: str = "cpu"

    @property
    def shape(self) -> Any:
        return self.model.shape

    @cached_property
    def tokenizer(self) -> Any:
        return open_tokenizer(self.source)

    def session(self, ctx: int) -> Session:
        return Session(self.model, ctx)


def calibration_text() -> str:
    """Return one conversation for each skill that the model was trained in, in the format of a file of prompts."""
    from .skills import SKILLS

    texts = [skill.train(random.Random(f"calibration {name}"), EPISODE).text for name, skill in SKILLS.items()]
    return "".join(f"{MARKER}\n{text}\n" for text in texts)


def measure(path: str | os.PathLike[str]) -> Imatrix:
    """Return the importance matrix of the model at ``path``, measured without rounding of activations."""
    with open_source(path) as source:
        arch = arch_of(source)
        shape = arch.read_shape(source, False)
        model = arch.model(shape, arch.bind(source, shape), load_backend("cpu"), numerics("exact"), False)
        engine = _Observed(source, model)
        table = collect(engine, prompts(engine, calibration_text(), PIECE, None, None))
    table.datasets = ["generated tasks"]
    return table
