"""The diagnostic model: small, and built so that every mistake of an engine shows in its logits.

The random model (``recipe.NANO``) is tame, as a model that generates text should be. This one is chaotic on purpose:
clamps take effect in every layer kind, top-k drops rows (keeps 8 of up to 50), sinks and position biases are strong,
windows are 16 tokens, the last two layers store their experts as Q4_K, and 200 tokens close a window of 128. Any
mistake then moves the logits by 0.1 to 4, four orders of magnitude above float noise, which ``ds4-vectors diagnose``
relies on.

    path = diagnostic_path()            the file, 12 MB, built once per machine (under a second)
    ids = PROMPTS["mixed"]()            token ids of the prompt set
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from ..archs.deepseek4.tensors import Recipe, expected_tensors
from ..weights.container import TensorSpec
from ..weights.writer import GGUFWriter
from .cache import building, cache_dir, file_sha256
from .fill import Noise, random_experts, random_tensor
from .prose import prose
from .recipe import NANO, metadata
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
_CORPUS = (200_000, 1)

# Gain of a matrix: inputs of unit variance leave with this standard deviation.
_GAIN = {
    "output": 2.5,
    "attn_output_a": 1.5,
    "attn_output_b": 1.5,
    "attn_compressor_gate": 1.5,
    "indexer_compressor_gate": 1.5,
    "ffn_gate_inp": 1.5,
    "ffn_gate_shexp": 3.0,
    "ffn_up_shexp": 3.0,
    "ffn_down_shexp": 0.5,
}
# Routed experts of even and odd layers: the second kind runs into the clamp often.
_ROUTED = ({"gate": 2.0, "up": 2.0, "down": 0.8}, {"gate": 6.5, "up": 6.5, "down": 0.17})
# Vectors: standard deviation and mean.
_VECTORS = {
    "token_embd": (1.0, 0.0),
    "attn_kv_a_norm": (0.4, 1.5),
    "attn_compressor_norm": (0.4, 1.5),
    "attn_sinks": (0.8, 0.0),
    "attn_compressor_ape": (0.7, 0.0),
    "indexer_compressor_ape": (0.7, 0.0),
    "exp_probs_b.bias": (0.3, 0.0),
}


def diagnostic_path() -> str:
    """Return the path of the diagnostic model in the cache, built first if absent or damaged; raise DataError if that
    fails."""
    path = cache_dir() / f"diagnostic-{DIAGNOSTIC_SHA256[:12]}.gguf"
    if file_sha256(path) == DIAGNOSTIC_SHA256:
        return str(path)
    with building(path):
        if file_sha256(path) != DIAGNOSTIC_SHA256:
            write_diagnostic(path)
    return str(path)


def write_diagnostic(path: str | os.PathLike[str]) -> None:
    """Write the model file atomically; the bytes are the same on every machine."""
    specs = expected_tensors(DIAGNOSTIC, Recipe("diagnostic", "IQ2_XXS", "Q2_K", upgraded=2))
    vocabulary = build_vocabulary(DIAGNOSTIC.vocab, prose(*_CORPUS))
    with GGUFWriter(path, metadata(DIAGNOSTIC, vocabulary), specs) as out:
        for spec in specs:
            out.write(spec.name, _contents(spec))


def _contents(spec: TensorSpec) -> Iterator[np.ndarray]:
    noise = Noise(_SEED, spec.name)
    layer, role = -1, spec.name.removesuffix(".weight")
    if role.startswith("blk."):
        _, number, role = role.split(".", 2)
        layer = int(number)
    if role == "ffn_gate_tid2eid":
        return random_experts(DIAGNOSTIC.vocab, DIAGNOSTIC.n_used, DIAGNOSTIC.n_experts, noise)
    std, mean = _spread(role, layer, spec.dims[0])
    return random_tensor(spec, noise, std, mean)


def _spread(role: str, layer: int, columns: int) -> tuple[float, float]:
    """Return the standard deviation and mean of a tensor's values."""
    if role in _VECTORS:
        return _VECTORS[role]
    if role.endswith("_exps"):
        return _ROUTED[layer % 2][role.split("_")[1]] / columns**0.5, 0.0
    if role.endswith("_norm"):
        return 0.3, 1.0
    if role.endswith("_scale"):
        return 0.3, 1.0
    if role.endswith("_base"):
        return 1.0, 0.0
    return _GAIN.get(role, 1.0) / columns**0.5, 0.0


def _random(seed: int, count: int) -> list[int]:
    words = np.random.PCG64(seed).random_raw(count)
    return (words % np.uint64(DIAGNOSTIC.vocab)).astype(int).tolist()


def _text() -> list[int]:
    """Return prose after BOS, as a served prompt would be."""
    from ..text.tokenizer import Tokenizer

    vocabulary = build_vocabulary(DIAGNOSTIC.vocab, prose(*_CORPUS))
    tokenizer = Tokenizer(vocabulary.tokens, vocabulary.merges)
    return [tokenizer.bos, *tokenizer.encode(prose(2000, seed=7))][:200]


PROMPTS: dict[str, Callable[[], list[int]]] = {
    "mixed": lambda: _random(1, 200),
    "short": lambda: _random(2, 24),
    "text": _text,
    "long": lambda: _random(3, 700),
}
"""The prompt set: name -> function that returns token ids. Start with "mixed"."""
