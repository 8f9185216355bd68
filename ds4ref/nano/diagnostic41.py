"""The diagnostic model of DeepSeek V4.1: a small random model whose logits change visibly with every bug in an engine
(``diagnostic`` has V4's).

It has every mechanism: Engram in two layers, pairs and single rows, four index sources, candidate blocks that leave
rows out, a router temperature, and clamps that take effect.

    path = diagnostic41_path()          a GGUF file of ds4's kind, built once per machine
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

from ..archs.deepseek41.shape import FLASH
from ..archs.deepseek41.tensors import expected_tensors
from ..text.keys import CONTROL
from ..text.protocol import SYSTEM
from ..weights.container import TensorSpec
from ..weights.writer import write_gguf
from .cache import reproduced
from .diagnostic import SPREADS
from .engram import entries, folded, sizes
from .recipe import contents, matrix
from .vocab import build_vocabulary

_VOCABULARY = build_vocabulary(511)
_TOKENS = [*_VOCABULARY.tokens, SYSTEM]
_LEAST = 300
"""Columns of Engram's tables have more rows than this."""

DIAGNOSTIC41 = replace(
    FLASH, n_layers=9, dim=64, vocab=512, n_heads=4, head_dim=64, rope_dim=16, q_rank=32, o_rank=16, o_groups=2,
    n_experts=8, n_used=2, expert_ff=32, window=16, index_heads=8, index_dim=32, index_topk=12,
    ratios=(0, 0, 2, 2, 2, 1, 1, 1, 1), kv_sources=(2, 5), index_sources=(2, 4, 5, 7), candidate_source=5,
    candidate_blocks=5, candidate_size=4, swiglu_limit=(2.0,) * 9, gate_temp=1.25, yarn_orig_ctx=256,
    engram_layers=(1, 4), engram_rows=tuple(sizes(_LEAST, 2, 4, 2).reshape(2, -1).sum(1).tolist()), engram_heads=2,
    engram_vocab=len(folded(_TOKENS)), name="ds4ref diagnostic V4.1",
)  # fmt: skip

DIAGNOSTIC41_SHA256 = "136699f7d906be93636d5ba96aca2b3f9efec4d671f0027ff12e55ec81a6f628"

_SEED = 20261165  # of 70 seeds one of few with no near tie of a top-k on the prompt "mixed", in exact and qat

_SPREADS = {
    "*.ffn_gate_inp": matrix(1.5), "*.ffn_gate_*": matrix(2.0), "*.ffn_up_*": matrix(2.0), "*.ffn_down_*": matrix(1.0),
} | SPREADS  # fmt: skip


def diagnostic41_path() -> str:
    """Return the path of the model in the cache, built first if it is absent or damaged; raise DataError if that
    fails."""
    return reproduced("diagnostic41", DIAGNOSTIC41_SHA256, write_diagnostic41)


def write_diagnostic41(path: str | os.PathLike[str]) -> None:
    """Write the model's file atomically; the bytes are the same on every machine."""
    specs = [_stored(spec) for spec in expected_tensors(DIAGNOSTIC41)]
    with write_gguf(path, _metadata(), specs) as out:
        for spec in specs:
            out.write(spec.name, contents(spec, DIAGNOSTIC41, _SEED, _SPREADS))


def _stored(spec: TensorSpec) -> TensorSpec:
    """Return the spec in a float format: rows are too short for blocks of 256."""
    return spec if spec.fmt in ("F32", "I8") else replace(spec, fmt="F16")


def _metadata() -> list[tuple[str, str, Any]]:
    at = "tokenizer.ggml."
    return [
        *DIAGNOSTIC41.metadata(),
        *entries(DIAGNOSTIC41, _TOKENS, _LEAST),
        (f"{at}model", "string", "gpt2"),
        (f"{at}tokens", "string[]", _TOKENS),
        (f"{at}token_type", "i32[]", [*_VOCABULARY.types, CONTROL]),
        (f"{at}merges", "string[]", _VOCABULARY.merges),
        *((f"{at}{name}_token_id", "u32", number) for number, name in enumerate(("bos", "eos", "padding"))),
    ]
