"""Importance of the embedded model's weights, measured on texts of its own domain."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ..archs import Model, arch_of
from ..backends import load_backend
from ..importance import collect, prompts
from ..numerics import numerics
from ..session.session import Session
from ..text.vocabulary import open_tokenizer
from ..weights import open_source
from ..weights.quantize.imatrix import Imatrix
from ..weights.source import TensorSource
from .prose import prose

TOKENS, PIECE = 8_192, 512
"""Tokens that importance is measured on, and tokens per timeline."""


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
    """Return rendered text of the kind that the model was trained on, of at least ``TOKENS`` tokens."""
    return prose(8 * TOKENS, 1)


def measure(path: str | os.PathLike[str]) -> Imatrix:
    """Return the importance of the weights of the model at ``path``, measured with activations as they are."""
    with open_source(path) as source:
        arch = arch_of(source)
        shape = arch.read_shape(source, False)
        model = arch.model(shape, arch.bind(source, shape), load_backend("cpu"), numerics("exact"), False)
        engine = _Observed(source, model)
        table = collect(engine, prompts(engine, calibration_text(), PIECE, None, TOKENS))
    table.datasets = ["generated tasks"]
    return table
