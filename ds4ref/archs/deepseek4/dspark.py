"""DSpark, the drafter beside checkpoints since June 2026: a few more layers that guess the next tokens all at once.

The model's streams after some of its layers, averaged over the streams, become one row of keys and values in every
stage of the drafter. A block (the newest token, which the model has not read, and noise tokens) attends to the newest
rows and to itself, in both directions; a table of token pairs then corrects guess after guess, and a last row of
weights says how likely each is to be accepted.

    drafter = Drafter.open("dspark.gguf", model)
    rows = drafter.rows()
    drafter.inject(means, rows)              # of positions rows.pos .. rows.pos + T - 1, which the model has computed
    guess = drafter.guess(token, rows)       # the tokens after ``token``, which is at rows.pos
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self

import numpy as np

from ds4ref.kernels.formats import Matrix

from ...errors import ModelFileError
from ...weights.source import TensorSource
from ..binding import fields_of, placed_values
from ..experts import ExpertUse
from ..keys import check
from ..steering import Directions
from . import attention, head, moe
from .chunk import Chunk, Plan
from .forward import Model
from .mtp import Block, Window, opened
from .shape import PLAIN, ModelShape
from .tensors import F16, F32, MIX, Q8_0, Slot, is_dspark, stage_slots
from .weights import LayerWeights, Weights, fill_checked, read_checked

_KEYS = {
    "block": ("deepseek4.dspark.block_size", "dflash.block_size"),
    "noise": ("deepseek4.dspark.noise_token_id", "tokenizer.ggml.mask_token_id", "dflash.mask_token_id"),
    "targets": ("deepseek4.dspark.target_layers", "deepseek4.dspark.target_layer_ids", "dflash.target_layers"),
}
"""Metadata keys of ds4's and llama.cpp's files."""
_DFLASH = {
    "main_proj": "fc.weight", "main_norm": "enc.output_norm.weight", "norm": "output_norm.weight",
    "hc_head_fn": "output_hc_fn.weight", "hc_head_base": "output_hc_base.weight",
    "hc_head_scale": "output_hc_scale.weight", "markov_w1": "markov_w1.weight", "markov_w2": "markov_w2.weight",
    "confidence": "conf_proj.weight",
}  # fmt: skip
"""llama.cpp's names of the tensors outside the layers."""


@dataclass(frozen=True)
class Settings:
    """What a drafter's file says of it.

    block    tokens that it guesses at once; another number is another computation
    noise    id of the token that stands for those that are not known
    targets  the model's layers, ascending, after which its streams are read
    """

    block: int
    noise: int
    targets: tuple[int, ...]

    @classmethod
    def read(cls, source: TensorSource, model: ModelShape) -> Self:
        """Read the settings of a file for a model of this shape; ModelFileError for one that is missing or out of
        range."""
        known: dict[str, Any] = {}
        for name, keys in _KEYS.items():
            value = next((source.metadata[key] for key in keys if key in source.metadata), None)
            if value is None:
                raise ModelFileError(source.path, f"it is no DSpark drafter: metadata key {keys[0]} is missing")
            known[name] = tuple(map(int, value)) if name == "targets" else int(value)
        settings = cls(**known)
        if not 1 <= settings.block <= model.window or not 0 <= settings.noise < model.vocab:
            raise ModelFileError(source.path, f"a block of {settings.block} tokens and noise token {settings.noise}")
        if not settings.targets or any(not 0 <= layer < model.n_layers for layer in settings.targets):
            raise ModelFileError(source.path, f"reads layers {settings.targets} of a model of {model.n_layers}")
        return settings


class Guess(NamedTuple):
    """Tokens guessed after the newest one, their logits (block, V) and the chance (block,) that each is accepted."""

    tokens: list[int]
    logits: np.ndarray
    confidence: np.ndarray


def drafter_slots(shape: ModelShape, stages: int, targets: int, rank: int, dflash: bool = False) -> list[Slot]:
    """Return a slot for every tensor of a drafter beside a model of ``shape``.

    rank    width of the table of token pairs
    dflash  names as in llama.cpp's files; else as in ds4's
    """
    last, dim, streams = f"mtp.{stages - 1}.", shape.dim, shape.hc * shape.dim
    own = {
        "main_proj": ("mtp.0.main_proj.weight", (targets * dim, dim), Q8_0),
        "main_norm": ("mtp.0.main_norm.weight", (dim,), F32),
        "norm": (f"{last}norm.weight", (dim,), F32),
        "hc_head_fn": (f"{last}hc_head_fn.weight", (streams, shape.hc), MIX),
        "hc_head_base": (f"{last}hc_head_base.weight", (shape.hc,), F32),
        "hc_head_scale": (f"{last}hc_head_scale.weight", (1,), F32),
        "markov_w1": (f"{last}markov_head.markov_w1.weight", (rank, shape.vocab), F16),
        "markov_w2": (f"{last}markov_head.markov_w2.weight", (rank, shape.vocab), F16),
        "confidence": (f"{last}confidence_head.proj.weight", (dim + rank, 1), F16),
    }
    found = [
        Slot(_DFLASH[attr] if dflash else name, attr, dims, fmts, "rest") for attr, (name, dims, fmts) in own.items()
    ]
    prefix = "blk." if dflash else "mtp."
    return found + [slot for stage in range(stages) for slot in stage_slots(shape, f"{prefix}{stage}.", stage)]


class Drafter:
    """The drafter beside its model. Immutable, shared by all that draft with it.

    ``shape`` is that of a model of as many layers as it has stages: sliding window, routed by score.
    """

    steering: Directions | None = None

    def __init__(self, model: Model, source: TensorSource):
        """Bind the drafter in ``source``, which must stay open; ``open`` does both."""
        self.source, self.ops, self.numerics, self.rope = source, model.ops, model.numerics, model.rope
        self.settings = Settings.read(source, model.shape)
        dflash = "fc.weight" in source.tensors
        stages = len(set(_stages(source, "blk." if dflash else "mtp.")))
        table = next((info for name, info in source.tensors.items() if name.endswith("markov_w1.weight")), None)
        slots = drafter_slots(model.shape, stages, len(self.settings.targets), table.dims[0] if table else 0, dflash)
        filled, problems = fill_checked(source, slots)
        check(source, problems)
        self.shape = replace(
            model.shape, n_layers=stages, n_hash_layers=0, ratios=(PLAIN,) * stages,
            swiglu_limit=model.shape.swiglu_limit[-1:] * stages,
        )  # fmt: skip
        layers: list[dict[str, Any]] = [{} for _ in range(stages)]
        own: dict[str, Any] = {}
        for slot, value in read_checked(source, filled, model.shape):
            (own if slot.layer is None else layers[slot.layer])[slot.attr] = value
        own = placed_values(own, self.ops)
        self.main_proj: Matrix = own["main_proj"]
        self.main_norm = own["main_norm"]
        self.markov: tuple[Matrix, Matrix] = own["markov_w1"], own["markov_w2"]
        self.chance: Matrix = own["confidence"]
        self.weights = Weights(
            token_embd=model.weights.token_embd, output=model.weights.output, output_norm=own["norm"],
            output_hc_fn=own["hc_head_fn"], output_hc_base=own["hc_head_base"], output_hc_scale=own["hc_head_scale"],
            layers=[fields_of(LayerWeights, placed_values(layer, self.ops)) for layer in layers],
        )  # fmt: skip
        self.experts = ExpertUse(self.ops, self.weights.layers, self.shape.n_experts)
        self._records = self.ops.record() is not None

    @classmethod
    def open(cls, path: str | os.PathLike[str], model: Any) -> Self:
        """Open the drafter for ``model`` in a GGUF file, ds4's or llama.cpp's, or in a published folder.

        Raise UsageError for a model of another family, ModelFileError or ShapeError for a file that does not fit.
        """
        return opened(path, model, lambda source: cls)

    def close(self) -> None:
        """Unmap the file; the drafter becomes unusable."""
        self.source.close()

    def rows(self) -> Window:
        """Return an empty cache of one sequence."""
        return Window(self)

    def inject(self, means: np.ndarray, rows: Window) -> None:
        """Write the rows of T positions from ``rows.pos`` on, and advance ``rows``.

        means: float32 (T, targets, D), the mean of the model's streams after each target layer.
        """
        ops, s = self.ops, self.shape
        c = Chunk(self, [0] * len(means), rows.pos, Plan({}, 0))
        x = ops.linear(ops.upload(means.reshape(len(means), -1)), self.main_proj, c.act(self.main_proj))
        x = ops.rms_norm(x, self.main_norm, s.rms_eps)
        for stage, w in enumerate(self.weights.layers):
            c.at_layer(stage, w, rows.layers[stage])
            ops.store_rows(attention.cache_row(c, x, c.rope_tables()), c.cache.raw, c.at())
        rows.advance(len(means))

    def guess(self, token: int, rows: Window, pick: Callable[[np.ndarray], int] | None = None) -> Guess:
        """Guess the tokens after ``token``, which is at position ``rows.pos``; ``rows`` stay as they are.

        pick: chooses a token from logits (V,); None: the likeliest.
        """
        return self.chained(token, *self.forward(token, rows), pick)

    def forward(self, token: int, rows: Window) -> tuple[Any, Any]:
        """Run the block after ``token``; return its collapsed streams (block, D) and logits (block, V), arrays of the
        backend."""
        return self._run(self.passes(token, rows), rows)

    def chained(
        self,
        token: int,
        hidden: Any,
        base: Any,
        pick: Callable[[np.ndarray], int] | None = None,
        count: int | None = None,
    ) -> Guess:
        """Choose token after token from the results of a block's pass: each one's logits depend on the one before.

        hidden, base: collapsed streams (block, D) and logits (block, V), arrays of the backend. count: how many tokens;
        None: the whole block.
        """
        ops, count = self.ops, self.settings.block if count is None else count
        hidden, base = ops.host(hidden[:count]), ops.host(base[:count])
        table, expand = self.markov
        tokens, logits, chances = [token], np.empty_like(base), np.empty(count)
        for i in range(count):
            pair = ops.embed(table, ops.upload(np.array([self.before(tokens)], np.int32)))
            logits[i] = base[i] + ops.host(ops.linear(pair, expand, "float"))[0]
            state = np.concatenate((hidden[i], ops.host(pair)[0]))[None]
            chances[i] = ops.host(ops.linear(ops.upload(state), self.chance, "float"))[0, 0]
            tokens.append(int(logits[i].argmax()) if pick is None else pick(logits[i]))
        return Guess(tokens[1:], logits, 1 / (1 + np.exp(-chances)))

    # what ``variants.drafters`` changes

    def passes(self, token: int, rows: Window, ops: Any = None) -> Pass:
        """Return the block after ``token``."""
        return Pass(self, token, rows, ops)

    def stages(self) -> Iterable[int]:
        """Return the stages to run, in order."""
        return range(self.shape.n_layers)

    def before(self, tokens: Sequence[int]) -> int:
        """Return the token whose pairs correct the guess after ``tokens``."""
        return tokens[-1]

    def _run(self, c: Pass, rows: Window) -> tuple[Any, Any]:
        ops = c.ops
        X = ops.streams(ops.embed(self.weights.token_embd, c.ids), self.shape.hc)
        for stage in self.stages():
            c.at_layer(stage, self.weights.layers[stage], rows.layers[stage])
            X = moe.half_layer(c, attention.half_layer(c, X))
        hidden = head.collapsed(c, self.weights, X)
        return hidden, head.vocabulary(c, self.weights, hidden)

    def record_rows(
        self, recording: Any, caches: Sequence[Window], counts: Sequence[int], plans: Sequence[None]
    ) -> tuple[Any, Any, Pass]:
        """Record a block's pass on the rows ``caches[0]`` (``decode.recorded``).

        Return collapsed streams and logits, for ``chained``, and the inputs, to be ``set`` before each replay.
        """
        (rows,) = caches
        c = self.passes(0, rows, recording)
        return *self._run(c, rows), c.leave()


def open_drafter(path: str | os.PathLike[str], model: Any) -> Drafter | Block:
    """Open the drafter of ``model`` in a file or published folder, whichever kind it is; errors as ``opened``."""

    def kind(source: TensorSource) -> Callable[[Model, TensorSource], Drafter | Block]:
        return Drafter if is_dspark(source.tensors) else Block

    return opened(path, model, kind)


def _stages(source: TensorSource, prefix: str) -> Iterator[str]:
    return (name.split(".")[1] for name in source.tensors if name.startswith(prefix))


class Pass(Chunk):
    """A block on its way through the drafter: the newest token and noise, at positions from ``rows.pos`` on."""

    def __init__(self, drafter: Drafter, token: int, rows: Window, ops: Any = None):
        self._noise = [drafter.settings.noise] * (drafter.settings.block - 1)
        self._first = max(rows.first, rows.pos - drafter.shape.window)
        super().__init__(drafter, [token, *self._noise], rows.pos, Plan({}, 0), None, ops)

    def set(self, token: int, rows: Window) -> None:
        """Refill the inputs for the block after another token, which is at the position of ``rows``."""
        self._first = max(rows.first, rows.pos - self.shape.window)
        self.move([token, *self._noise], rows.pos)

    def raw_window(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the same rows for each token: the newest of the model's positions, and the whole block."""

        def compute(c: Pass) -> tuple[np.ndarray, np.ndarray]:
            count = c.pos0 + len(c.positions) - c._first
            return np.full(len(c.positions), c._first, np.int32), np.full(len(c.positions), count, np.int32)

        first, count = self.input("window", compute)
        return first, count
