"""Reads the metadata keys of a GGUF file that describe its vocabulary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..errors import TextError

if TYPE_CHECKING:
    from ..weights.source import TensorSource
    from .template import ChatTemplate

GGML = "tokenizer.ggml."
MODEL_KEY, EMBEDDING = GGML + "model", "token_embd.weight"
TEMPLATE_KEY = "tokenizer.chat_template"
ENDS_KEY = GGML + "eos_token_ids"
MOST_ENDS = 64
"""Maximum number of tokens that end an answer."""
NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = range(1, 7)
"""Token types (tokenizer.ggml.token_type) of GGUF files."""
_ENDS = """</s> <eos> <end_of_turn> <turn|> <end_of_utterance> <EOT> [EOT] _<EOT> <|eot_id|> <|eom_id|> <|im_end|>
    <|end|> <|return|> <|call|> <|calls|> <|flush|> <|endoftext|> <|end_of_text|> <|tool_response>"""
_INFILLING = """<|fim_prefix|> <|fim_suffix|> <|fim_middle|> <|fim_pad|> <|fim_repo|> <|repo_name|> <|file_sep|>
    <PRE> <SUF> <MID> <PAD> <REPO>"""
CONTROL_BY_NAME = frozenset(f"{_ENDS} {_INFILLING}".split())
"""Tokens that llama.cpp treats as control tokens because of their names, whatever their type in the file: plain text
never yields them."""
IDS = ("u32", "i32", "u64", "i64")
"""GGUF metadata types that a token id may have."""
NONE = 0xFFFFFFFF
"""Value by which llama.cpp writes "no token" where ids are unsigned."""


@dataclass(frozen=True)
class StoredVocabulary:
    """The vocabulary as a GGUF file stores it.

    tokens    string of each token
    kinds     type of each token; empty if the file does not say
    bos, eos  ids of the tokens that begin and end texts
    ends      ids of tokens besides ``eos`` that end an answer: end of turn, end of message, and others
    adds_bos  whether a text starts with ``bos``; None if the file does not say
    template  the chat template, None if there is none
    """

    tokens: list[str]
    kinds: list[int]
    bos: int
    eos: int
    ends: list[int]
    adds_bos: bool | None
    template: ChatTemplate | None


class VocabularyKeys:
    """Reads the values of metadata keys below ``tokenizer.ggml.``; raises TextError for a value of the wrong type."""

    def __init__(self, source: TensorSource):
        self._metadata, self._where = source.metadata, source.path

    def value(self, key: str, kinds: Sequence[str], default: Any) -> Any:
        """Return the value of a key, which must have one of the types ``kinds``; ``default`` if there is no such
        key."""
        kind = self._metadata.type_of(GGML + key)
        if kind not in (None, *kinds):
            raise TextError(f"{self._where}: {GGML}{key} has type {kind}, wanted {kinds[0]}")
        return default if kind is None else self._metadata[GGML + key]

    def items(self, key: str, kinds: Sequence[str], count: int) -> list[Any]:
        """Return an array with one item for each of ``count`` tokens; [] if there is no such key."""
        values: list[Any] = self.value(key, kinds, [])
        if len(values) not in (0, count):
            raise TextError(f"{self._where}: {GGML}{key} has {len(values)} entries for {count} tokens")
        return values

    def read(self, bos: int = -1, eos: int = -1) -> StoredVocabulary:
        """Return the vocabulary of the file; ``bos`` and ``eos`` are used if the file does not name these tokens."""
        tokens = self.value("tokens", ("string[]",), None)
        if not tokens:
            raise TextError(f"{self._where}: {GGML}tokens is missing: this file has no tokenizer")
        bos, eos = (self.value(f"{n}_token_id", IDS, default) for n, default in (("bos", bos), ("eos", eos)))
        names = {f"{n}_token": tokens[i] if 0 <= i < len(tokens) else "" for n, i in (("bos", bos), ("eos", eos))}
        return StoredVocabulary(
            tokens, self.items("token_type", ("i32[]", "u32[]"), len(tokens)), bos, eos, self._ends(),
            self.value("add_bos_token", ("bool",), None), self._template(names),
        )  # fmt: skip

    def _ends(self) -> list[int]:
        lists = tuple(f"{kind}[]" for kind in IDS)
        if self._metadata.type_of(ENDS_KEY) in lists and self._metadata.count(ENDS_KEY) > MOST_ENDS:
            count = self._metadata.count(ENDS_KEY)
            raise TextError(f"{ENDS_KEY} lists {count} tokens, at most {MOST_ENDS} are allowed")
        tokens = [*self.value("eos_token_ids", lists, ())]
        tokens += [self.value(f"{name}_token_id", IDS, NONE) for name in ("eot", "eom")]
        return [token for token in tokens if token != NONE]

    def _template(self, tokens: Mapping[str, str]) -> ChatTemplate | None:
        from .template import ChatTemplate

        kind = self._metadata.type_of(TEMPLATE_KEY)
        if kind not in (None, "string"):
            raise TextError(f"{TEMPLATE_KEY} has type {kind}, wanted string")
        return None if kind is None else ChatTemplate(self._metadata[TEMPLATE_KEY], tokens)
