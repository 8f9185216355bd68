"""The diagnostic model: a small random model whose logits change visibly with every bug in an engine.

Unlike those of the random model (``recipe.NANO``), its values are extreme: clamps take effect in every kind of layer,
the indexer drops rows (it keeps 8 of up to 50), sinks and position biases are strong, sliding windows have 16 tokens,
the last two layers store their experts as Q4_K, and a prompt of 200 tokens completes a compression window of 128. Any
bug then moves the logits by 0.1 to 4, four orders of magnitude more than rounding does, which ``ds4-vectors diagnose``
relies on.

    path = diagnostic_path()            the file, 12 MB, built once per machine (under a second)
    ids = PROMPTS["mixed"]()            token ids of the prompt set
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from ..archs.deepseek4.tensors import Recipe
from .cache import reproduced
from .prose import prose
from .recipe import NANO, Spread, matrix, write_model
from .vocab import build_vocabulary

DIAGNOSTIC = replace(
    NANO,
    vocab=512,
    n_experts=8,
    n_used=3,
    window=16,
    index_topk=8,
    name="ds4ref diagnostic",
)

DIAGNOSTIC_SHA256 = "ff1861cd8c9ca7a59e44ca0396e7b68bd01b545458f8a3b28de2a618d2a7dbf1"

_SEED = 20261121

SPREADS = {
    "token_embd": Spread(1.0),
    "output": matrix(2.5),
    "*.attn_output_[ab]": matrix(1.5),
    "*_compressor_gate": matrix(1.5),
    "*.ffn_gate_inp": matrix(1.5),
    "*.ffn_gate_shexp": matrix(3.0),
    "*.ffn_up_shexp": matrix(3.0),
    "*.ffn_down_shexp": matrix(0.5),
    "blk.[024].ffn_down_exps": matrix(0.8),
    "blk.[024].ffn_*_exps": matrix(2.0),
    "*.ffn_down_exps": matrix(0.17),
    "*.ffn_*_exps": matrix(6.5),
    "*.attn_kv_a_norm": Spread(0.4, 1.5),
    "*.attn_compressor_norm": Spread(0.4, 1.5),
    "*.attn_sinks": Spread(0.8),
    "*_compressor_ape": Spread(0.7),
    "*.exp_probs_b.bias": Spread(0.3),
    "*_norm": Spread(0.3, 1.0),
    "*_scale": Spread(0.3, 1.0),
    "*_base": Spread(1.0),
}
"""Spreads by pattern of tensor names, first match. Routed experts of odd layers often reach the clamp."""


def diagnostic_path() -> str:
    """Return the path of the diagnostic model in the cache, built first if it is absent or damaged; raise DataError if
    that fails."""
    return reproduced("diagnostic", DIAGNOSTIC_SHA256, write_diagnostic)


def write_diagnostic(path: str | os.PathLike[str]) -> None:
    """Write the diagnostic model's file atomically; the bytes are the same on every machine."""
    recipe = Recipe("diagnostic", "IQ2_XXS", "Q2_K", upgraded=2)
    write_model(path, DIAGNOSTIC, recipe, seed=_SEED, spreads=SPREADS)


def _random(seed: int, count: int) -> list[int]:
    words = np.random.PCG64(seed).random_raw(count)
    return (words % np.uint64(DIAGNOSTIC.vocab)).astype(int).tolist()


def _text() -> list[int]:
    """Return the begin-of-sentence token and generated prose, cut to 200 tokens."""
    from ..text.tokenizer import Tokenizer

    vocabulary = build_vocabulary(DIAGNOSTIC.vocab)
    tokenizer = Tokenizer(vocabulary.tokens, vocabulary.merges)
    return [tokenizer.bos, *tokenizer.encode(prose(2000, seed=7))][:200]


PROMPTS: dict[str, Callable[[], list[int]]] = {
    "mixed": lambda: _random(1, 200),
    "short": lambda: _random(2, 24),
    "text": _text,
    "long": lambda: _random(3, 700),
}
"""Prompts for the diagnostic model: name -> function that returns token ids. "mixed" is the one to try first."""
