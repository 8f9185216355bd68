"""Importance of the embedded model's weights, measured on texts of its own domain."""

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
"""Rough number of tokens of one skill's conversation, and most tokens per timeline."""


@dataclass(frozen=True)
class _Observed:
    """The part of an engine that importance is measured with: ``Engine`` itself is above this room."""

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
    """Return a conversation of every skill that the model was trained in, as a file of prompts."""
    from .skills import SKILLS

    texts = [skill.train(random.Random(f"calibration {name}"), EPISODE).text for name, skill in SKILLS.items()]
    return "".join(f"{MARKER}\n{text}\n" for text in texts)


def measure(path: str | os.PathLike[str]) -> Imatrix:
    """Return the importance of the weights of the model at ``path``, measured with activations as they are."""
    with open_source(path) as source:
        arch = arch_of(source)
        shape = arch.read_shape(source, False)
        model = arch.model(shape, arch.bind(source, shape), load_backend("cpu"), numerics("exact"), False)
        engine = _Observed(source, model)
        table = collect(engine, prompts(engine, calibration_text(), PIECE, None, None))
    table.datasets = ["generated tasks"]
    return table
