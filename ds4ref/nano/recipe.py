"""Model files of random weights: their dimensions, storage formats and the spread of their values.

There are two kinds. ``NANO`` is the random model: it has every kind of layer and every mechanism of DeepSeek V4 Flash,
and is small enough to be built in a second and to run anywhere. A slice (``slice_shape``) has the real dimensions of
Flash or Pro but fewer layers and experts, so that it runs on a small machine. Weights are scaled so that every part of
the network affects the output: the generated text is meaningless, but speed and numerics are representative.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any

import numpy as np

from ..archs.deepseek4.shape import FLASH, PUBLISHED
from ..archs.deepseek4.tensors import RECIPES, Recipe, expected_tensors
from ..errors import UsageError, did_you_mean
from ..weights.container import TensorSpec
from ..weights.writer import write_gguf
from .fill import Noise, random_experts, random_tensor
from .vocab import MINIMUM, build_vocabulary

NANO = replace(
    FLASH,
    n_layers=6,
    dim=256,
    vocab=2048,
    n_heads=8,
    head_dim=256,
    q_rank=128,
    o_rank=64,
    o_groups=4,
    n_experts=16,
    n_used=4,
    expert_ff=256,
    window=64,
    index_heads=8,
    index_topk=64,
    ratios=FLASH.ratios[:6],
    swiglu_limit=FLASH.swiglu_limit[:6],
    name="ds4ref nano",
)

_SEED = 20260513

Progress = Callable[[int, int], None]


def slice_shape(layers: int = 4, experts: int = 256, vocab: int = 4096, model: str = "flash") -> Any:
    """Return the shape of a slice: that of a published model, "flash", "pro" or "flash41", with fewer layers, experts
    and tokens in the vocabulary. Raise UsageError for a value out of range.

    Four layers of Flash include every kind: hash routing in layers 0 to 2, ratio 4 in layer 2, ratio 128 in layer 3. Of
    V4.1 ("flash41") only five layers are offered, one of each kind: Engram (a small table, of real rows), pairs, a
    reader of theirs, the candidate source, a later index source.
    """
    known = (*PUBLISHED, V41)
    if model not in known:
        raise UsageError(f"unknown shape {model!r}: choose from {', '.join(known)}{did_you_mean(model, known)}")
    if model == V41:
        return _slice41(layers, experts, vocab)
    whole = PUBLISHED[model]
    for name, value, low, high in (
        ("layers", layers, 1, whole.n_layers),
        ("experts", experts, 1, whole.n_experts),
        ("vocab", vocab, MINIMUM, whole.vocab),
    ):
        if not low <= value <= high:
            raise UsageError(f"{name} must be {low} to {high}, not {value}")
    return replace(
        whole,
        n_layers=layers,
        n_experts=experts,
        n_used=min(whole.n_used, experts),
        n_hash_layers=min(whole.n_hash_layers, layers),
        vocab=vocab,
        ratios=whole.ratios[:layers],
        swiglu_limit=whole.swiglu_limit[:layers],
        name=f"ds4ref slice of {model.capitalize()}, {layers} layers, {experts} experts",
    )


V41, LEAST = "flash41", 10_000
"""Name of V4.1's shape; number of rows that each column of a slice's table has at least."""


def _slice41(layers: int, experts: int, vocab: int) -> Any:
    from ..archs.deepseek41.shape import FLASH as WHOLE
    from .engram import folded, sizes

    if layers != 5 or not WHOLE.n_used <= experts <= WHOLE.n_experts or not MINIMUM <= vocab <= WHOLE.vocab:
        limits = f"experts {WHOLE.n_used} to {WHOLE.n_experts}, vocab {MINIMUM} to {WHOLE.vocab}"
        raise UsageError(f"a slice of {V41} has 5 layers, {limits}")
    rows = sizes(LEAST, 1, WHOLE.engram_grams, WHOLE.engram_heads).sum()
    return replace(
        WHOLE, n_layers=5, n_experts=experts, vocab=vocab, ratios=(0, 2, 2, 1, 1), kv_sources=(1, 3),
        index_sources=(1, 3, 4), candidate_source=3, swiglu_limit=WHOLE.swiglu_limit[:5], engram_layers=(0,),
        engram_rows=(int(rows),), engram_vocab=len(folded(build_vocabulary(vocab).tokens)),
        name=f"ds4ref slice of V4.1 Flash, 5 layers, {experts} experts",
    )  # fmt: skip


@dataclass(frozen=True)
class Spread:
    """Mean and standard deviation of a tensor's random values; if ``per_input``, ``std`` is divided by the square root
    of the row length."""

    std: float
    mean: float = 0.0
    per_input: bool = False


def matrix(gain: float) -> Spread:
    """Return the spread of a matrix whose outputs have standard deviation ``gain`` for inputs of unit variance."""
    return Spread(gain, per_input=True)


Spreads = Mapping[str, Spread]
"""Pattern of tensor names, without ".weight" -> spread. The first pattern that matches is used; if none does,
``matrix(1.0)``."""

_SPREADS: Spreads = {
    "token_embd": Spread(0.4),  # small, so that the context shapes the prediction as much as the last token
    "output": matrix(2.5),  # standard deviation of the logits
    "*_norm": Spread(0.1, 1.0),
    "*.attn_sinks": Spread(1.0),
    "*_ape": Spread(0.5),
    "*_scale": Spread(0.1, 0.5),
    "*_base": Spread(0.5),
    "*.ffn_gate_inp": matrix(1.5),
    "*.exp_probs_b.bias": Spread(0.1),
}


def write_model(
    path: str | os.PathLike[str],
    shape: Any,
    recipe: Recipe | str = "q2",
    *,
    seed: int = _SEED,
    spreads: Spreads = _SPREADS,
    progress: Progress | None = None,
) -> None:
    """Write a model file of random weights atomically, in little memory.

    progress: called with (bytes done, bytes total). Equal arguments give equal bytes on every machine. Raise UsageError
    for an unknown recipe or an impossible shape, ModelFileError if the file cannot be written.
    """
    specs = tensors(shape, recipe)
    total, done = sum(spec.nbytes for spec in specs), 0
    with write_gguf(path, metadata(shape), specs) as out:
        for spec in specs:
            pieces: Iterable[np.ndarray] = contents(spec, shape, seed, spreads)
            if progress is not None:
                pieces = _reported(pieces, done, total, progress)
            out.write(spec.name, pieces)
            done += spec.nbytes


def tensors(shape: Any, recipe: Recipe | str) -> list[TensorSpec]:
    """Return name, format and dimensions of all tensors in file order; raise UsageError for an unknown recipe or an
    impossible shape."""
    if isinstance(recipe, str):
        check_recipe(recipe)
    problems = shape.problems()
    if problems:
        raise UsageError("; ".join(problems))
    if hasattr(shape, "kv_sources"):
        from ..archs.deepseek41.tensors import expected_tensors as later

        return later(shape, recipe)
    return expected_tensors(shape, recipe)


def check_recipe(recipe: str) -> None:
    """Raise UsageError, listing the known recipes, unless ``recipe`` is one of them."""
    if recipe not in RECIPES:
        raise UsageError(f"unknown recipe {recipe!r}: choose from {', '.join(RECIPES)}{did_you_mean(recipe, RECIPES)}")


def metadata(shape: Any) -> list[tuple[str, str, Any]]:
    """Return all metadata entries (key, type, value) of a model file: those that this engine and ds4 read, and those
    that llama.cpp needs in addition."""
    vocabulary = build_vocabulary(shape.vocab)
    engram: list[tuple[str, str, Any]] = []
    if hasattr(shape, "kv_sources"):
        from .engram import entries

        engram = entries(shape, vocabulary.tokens, LEAST)
    return [
        *shape.metadata(),
        *engram,
        (shape.prefix + "context_length", "u32", 1 << 20),
        (shape.prefix + "expert_gating_func", "u32", 4),  # llama.cpp's number of sqrt(softplus)
        ("general.quantization_version", "u32", 2),
        ("tokenizer.ggml.model", "string", "gpt2"),
        ("tokenizer.ggml.pre", "string", "joyai-llm"),
        ("tokenizer.ggml.tokens", "string[]", vocabulary.tokens),
        ("tokenizer.ggml.token_type", "i32[]", vocabulary.types),
        ("tokenizer.ggml.merges", "string[]", vocabulary.merges),
        ("tokenizer.ggml.bos_token_id", "u32", 0),
        ("tokenizer.ggml.eos_token_id", "u32", 1),
        ("tokenizer.ggml.padding_token_id", "u32", 2),
    ]


def contents(spec: TensorSpec, shape: Any, seed: int, spreads: Spreads) -> Iterator[np.ndarray]:
    """Return the bytes of one tensor of random values, in pieces."""
    noise, name = Noise(seed, spec.name), spec.name.removesuffix(".weight")
    if name.endswith("engram_embd"):
        from .engram import table

        return table(spec, Noise(seed, spec.name))
    if name.endswith("ffn_gate_tid2eid"):
        return random_experts(shape.vocab, shape.n_used, shape.n_experts, noise)
    spread = next((spread for pattern, spread in spreads.items() if fnmatchcase(name, pattern)), matrix(1.0))
    std = spread.std / spec.dims[0] ** 0.5 if spread.per_input else spread.std
    return random_tensor(spec, noise, std, spread.mean)


def _reported(pieces: Iterable[np.ndarray], done: int, total: int, progress: Progress) -> Iterator[np.ndarray]:
    for piece in pieces:
        yield piece
        done += piece.nbytes
        progress(done, total)
