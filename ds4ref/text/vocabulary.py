"""Which tokenizer a model file has: ``open_tokenizer`` tells by what lies in it or beside it.

byte-level BPE of DeepSeek     tokenizer.Tokenizer
another tokenizer.json         library.LibraryTokenizer, with the chat template beside it; byte-level GGUF files, too
scored pieces (Llama)          pieces.PieceTokenizer, of a GGUF file or a tokenizer.bin beside a llama2.c checkpoint
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..archs import architecture
from ..errors import TextError

if TYPE_CHECKING:
    from ..weights.source import Metadata, TensorSource
    from .tokenizer import Tokenizer

DEEPSEEK = "deepseek4"
GGML = "tokenizer.ggml."
MODEL_KEY, EMBEDDING = GGML + "model", "token_embd.weight"
ENDS_KEY = GGML + "eos_token_ids"
MOST_ENDS = 64
"""Of more tokens that end an answer, the first."""


def open_tokenizer(source: TensorSource, split: str = "unicode") -> Tokenizer:
    """The tokenizer of an open model; ``split`` is that of DeepSeek's. TextError if there is none that can be used."""
    beside = getattr(source, "vocabulary", None)
    if beside is not None:
        from .pieces import read_tokenizer_bin

        if not beside.exists():
            raise TextError(f"{source.path}: no {beside.name} beside it: this checkpoint has no tokenizer")
        return read_tokenizer_bin(beside, source.tensors[EMBEDDING].dims[1])  # type: ignore[return-value]
    if source.metadata.type_of(MODEL_KEY) == "string" and source.metadata[MODEL_KEY] == "llama":
        from .pieces import from_source

        return from_source(source)  # type: ignore[return-value]
    if architecture(source) != DEEPSEEK:
        from .library import of_checkpoint, of_gguf

        checkpoint = getattr(source, "checkpoint", None)
        return of_gguf(source) if checkpoint is None else of_checkpoint(checkpoint)  # type: ignore[return-value]
    from .tokenizer import Tokenizer

    return Tokenizer.from_source(source, split)


def more_ends(metadata: Metadata) -> list[int]:
    """What a GGUF says ends an answer besides its ``eos_token_id``: a turn's end, a message's, or one of a list."""
    found: list[int] = []
    for key in (ENDS_KEY, GGML + "eot_token_id", GGML + "eom_token_id"):
        kind = metadata.type_of(key)
        if kind in ("u32[]", "i32[]", "u64[]", "i64[]"):
            found += metadata.first(key, MOST_ENDS)
        elif kind in ("u32", "i32", "u64", "i64"):
            found.append(metadata[key])
    return [int(token) for token in found]
