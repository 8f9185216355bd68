"""Opens the tokenizer of a model, of the class that the contents of its file or folder call for.

DeepSeek's byte-level BPE            tokenizer.Tokenizer
another byte-level tokenizer         library.LibraryTokenizer: any tokenizer.json, or a GGUF file
pieces with scores (Llama)           pieces.PieceTokenizer: a GGUF file, or tokenizer.bin beside a llama2.c checkpoint
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import TextError
from ..weights.source import DEEPSEEKS, architecture
from .keys import EMBEDDING, MODEL_KEY

if TYPE_CHECKING:
    from ..weights.source import TensorSource
    from .tokenizer import Tokenizer


def open_tokenizer(source: TensorSource, split: str = "unicode") -> Tokenizer:
    """Open the tokenizer of a model; raise TextError if there is no usable one.

    split: pre-tokenizer of DeepSeek's tokenizer (``Tokenizer``); other tokenizers have only their own.
    """
    beside = getattr(source, "vocabulary", None)
    if beside is not None:
        from .pieces import read_tokenizer_bin

        if not beside.exists():
            raise TextError(f"{source.path}: no {beside.name} beside it: this checkpoint has no tokenizer")
        return read_tokenizer_bin(beside, source.tensors[EMBEDDING].dims[1])  # type: ignore[return-value]
    if source.metadata.type_of(MODEL_KEY) == "string" and source.metadata[MODEL_KEY] == "llama":
        from .pieces import from_source

        return from_source(source)  # type: ignore[return-value]
    if architecture(source) not in DEEPSEEKS:
        from .library import of_checkpoint, of_gguf

        checkpoint = getattr(source, "checkpoint", None)
        return of_gguf(source) if checkpoint is None else of_checkpoint(checkpoint)  # type: ignore[return-value]
    from .tokenizer import Tokenizer

    return Tokenizer.from_source(source, split)


def ids_by_bytes(tokenizer: Tokenizer) -> dict[bytes, int]:
    """Return a dict from the bytes of a token to its id, the lowest of those with equal bytes. Tokens that decode to
    nothing are left out."""
    found = ((tokenizer.token_bytes(i), i) for i in reversed(range(len(tokenizer))))
    return {raw: i for raw, i in found if raw}
