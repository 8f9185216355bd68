"""Tokenizers of any model family, run by the `tokenizers` library, with the chat template of the model.

``LibraryTokenizer`` has the interface of ``tokenizer.Tokenizer``. Plain text never yields control tokens: text is first
cut at control strings, and the library, with a copy of the tokenizer that has no control tokens, gets only the text
between them. It runs in a process with limits (``limited``), because patterns and replacements of an untrusted file can
take any time and memory.

    tokenizer = of_checkpoint(checkpoint)
    ids = tokenizer.chat([{"role": "user", "content": "Hello"}])
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import TextError
from ..weights.cursor import quote
from ..weights.safetensors import CONFIG
from . import protocol
from .byte_level import to_bytes
from .control import ControlStrings, Span, clean
from .keys import CONTROL, CONTROL_BY_NAME, MOST_ENDS, USER, VocabularyKeys
from .limited import LimitedProcess
from .pretokenizers import RULES
from .published import MAX_TOKENS, TOKENIZER, definition
from .template import MAX_SOURCE, ChatTemplate

if TYPE_CHECKING:
    from ..weights.safetensors import Checkpoint
    from ..weights.source import TensorSource

TOKENIZER_CONFIG, TEMPLATE, GENERATION = "tokenizer_config.json", "chat_template.jinja", "generation_config.json"
MAX_CONFIG_BYTES = 16 << 20
SPACE = "\u2581"
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_STEPS = ("pre_tokenizer", "pretokenizers")


class LibraryTokenizer(ControlStrings):
    """Tokenizer (text <-> token ids) defined by a tokenizer.json.

    table      the parsed tokenizer.json
    where      its path, for error messages
    bos, eos   ids of the tokens that begin and end texts, -1 for none
    ends       ids of other tokens that end an answer
    template   the chat template; None if there is none: a prompt is then text that the model continues
    adds_bos   whether a text that the model is to continue starts with ``bos``
    """

    split = "library"

    def __init__(self, table: Mapping[str, Any], where: str, *, bos: int = -1, eos: int = -1,
                 ends: Iterable[int] = (), template: ChatTemplate | None = None, adds_bos: bool = True):  # fmt: skip
        added = table.get("added_tokens") or []
        if not isinstance(added, list) or not all(_is_token(token) for token in added):
            raise TextError(f"{where}: added_tokens is not a list of tokens")
        self.where, self.template = where, template
        self._recognise({token["content"]: token["id"] for token in added}, _texts(added, template))
        # The library would trim text next to some control tokens and add others, so it gets text without them only.
        bare = {**table, "added_tokens": [], "post_processor": None, "truncation": None, "padding": None}
        self._library, vocab = _started(bare, where)
        self._strings = _strings({**vocab, **self._control}, where)
        self._begin_and_end(bos, eos, ends, adds_bos, len(self._strings))
        self._byte_level = '"ByteLevel"' in json.dumps(table.get("decoder"))
        self.think_open = self._control.get(protocol.THINK_OPEN, -1)
        self.think_close = self._control.get(protocol.THINK_CLOSE, -1)

    def __len__(self) -> int:
        return len(self._strings)

    # --- text to ids

    def encode(self, text: str | bytes) -> list[int]:
        """Encode plain text without BOS. Control strings in it are ordinary characters; added tokens that stand for
        text (runs of spaces, HTML tags) are matched first."""
        return self._encoded(self._spans(clean(text), self._texts))

    def encode_rendered(self, text: str | bytes) -> list[int]:
        """Encode a rendered chat: each control string becomes its token, the text between them is plain text."""
        return self._encoded(self._spans(clean(text)))

    def _encoded(self, spans: Sequence[Span]) -> list[int]:
        texts = [span for span in spans if not isinstance(span, int) and span[1]]
        ids = []
        if texts:
            ids = self._library.ask({"do": "encode", "texts": texts}, sum(len(text) for _, text in texts))["ids"]
        pieces = iter(ids)
        return [
            token for span in spans if isinstance(span, int) or span[1]
            for token in ([span] if isinstance(span, int) else next(pieces))
        ]  # fmt: skip

    def text_bytes(self, text: str | bytes) -> bytes:
        """Return the bytes that ``decode(encode(text))`` returns."""
        return clean(text).encode()

    def pieces(self, text: str | bytes) -> list[bytes]:
        """Return the whole text as one piece: the library does not show how its pre-tokenizer cuts it."""
        data = self.text_bytes(text)
        return [data] if data else []

    # --- ids to text

    def token_string(self, token: int) -> str:
        """Return the token's string in the vocabulary; "" for an id outside it."""
        return self._strings[token] if 0 <= token < len(self._strings) else ""

    def token_bytes(self, token: int) -> bytes:
        """Return the bytes of a token; b"" for an id outside the vocabulary."""
        string = self.token_string(token)
        if string in self._control:
            return string.encode()
        if self._byte_level:
            return to_bytes(string)
        match = _BYTE.fullmatch(string)
        return bytes([int(match[1], 16)]) if match else string.replace(SPACE, " ").encode()

    def decode(self, ids: Iterable[int]) -> bytes:
        """Return the bytes of a token sequence, control tokens included."""
        return b"".join(map(self.token_bytes, ids))


def _texts(added: Sequence[Mapping[str, Any]], template: ChatTemplate | None) -> set[str]:
    """Return the strings of the added tokens that stand for ordinary text.

    They are not marked as special and do not depend on the text around them; they are either white space, or neither
    think tags nor strings that occur in the chat template.
    """
    written = protocol.THINK_OPEN + protocol.THINK_CLOSE + (template.source if template else "")
    return {
        token["content"] for token in added
        if token.get("special", True) is False and not any(token.get(f) for f in ("lstrip", "rstrip", "single_word"))
        and (token["content"].isspace() or token["content"] not in written)
    }  # fmt: skip


def of_checkpoint(checkpoint: Checkpoint) -> LibraryTokenizer:
    """Open the tokenizer of a published model, with the chat template in its folder.

    Raise ModelFileError or TextError if a file is missing or unusable.
    """
    table, where = definition(checkpoint), str(checkpoint.folder / TOKENIZER)
    settings = checkpoint.json(TOKENIZER_CONFIG, MAX_CONFIG_BYTES) if checkpoint.has(TOKENIZER_CONFIG) else {}
    ids = {**_vocab(table), **{t["content"]: t["id"] for t in table.get("added_tokens") or [] if _is_token(t)}}
    names = {name: text for name in ("bos_token", "eos_token") if (text := _content(settings.get(name))) is not None}
    ends = {}
    for name in ("bos_token", "eos_token"):
        own = ids.get(names[name]) if name in names else None
        ends[name] = own if own is not None else next(iter(_configured(checkpoint, name + "_id")), -1)
    source = _template(checkpoint, settings)
    template = None if source is None else ChatTemplate(source, {"bos_token": "", "eos_token": "", **names})
    also = _configured(checkpoint, "eos_token_id")
    return LibraryTokenizer(table, where, bos=ends["bos_token"], eos=ends["eos_token"], ends=also, template=template,
                            adds_bos=_adds_bos(table, settings, ends["bos_token"]))  # fmt: skip


def of_gguf(source: TensorSource, other: str = "") -> LibraryTokenizer:
    """Open the byte-level tokenizer of a GGUF file, with its chat template.

    ``tokenizer.ggml.pre`` names its pre-tokenizer, one of ``pretokenizers.RULES``; ``other``: name to use instead.
    Raise TextError if the file has no usable tokenizer of this kind.
    """
    where, keys = f"{source.path}: its tokenizer", VocabularyKeys(source)
    if keys.value("model", ("string",), "") != "gpt2":
        raise TextError(f"{source.path}: no supported tokenizer.ggml.model: this file has no tokenizer")
    pre, stored = other or keys.value("pre", ("string",), "default"), keys.read()
    rule = RULES.get(pre)
    if rule is None:
        raise TextError(f"{where} has tokenizer.ggml.pre {pre[:40]!r}, which is not supported")
    tokens, kinds = stored.tokens, stored.kinds
    control = {i for i, kind in enumerate(kinds) if kind in (CONTROL, USER)}
    bytes_first = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    cuts = [
        {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
        for pattern in rule.patterns
    ]
    table = {
        "version": "1.0",
        "normalizer": {"type": "NFC"} if rule.nfc else None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [*cuts, bytes_first]},
        "decoder": bytes_first,
        "added_tokens": [
            {"id": i, "content": tokens[i], "special": kinds[i] == CONTROL or tokens[i] in CONTROL_BY_NAME}
            for i in sorted(control) if tokens[i]
        ],
        "model": {"type": "BPE", "vocab": {token: i for i, token in enumerate(tokens) if i not in control},
                  "merges": keys.value("merges", ("string[]",), []), "ignore_merges": rule.whole},
    }  # fmt: skip
    adds = rule.bos if stored.adds_bos is None else stored.adds_bos  # as llama.cpp reads such files
    return LibraryTokenizer(table, where, bos=stored.bos, eos=stored.eos, ends=stored.ends, template=stored.template,
                            adds_bos=adds)  # fmt: skip


def _adds_bos(table: Mapping[str, Any], settings: Mapping[str, Any], bos: int) -> bool:
    """Return whether texts start with BOS: as ``add_bos_token`` of tokenizer_config.json says, else whether the
    post-processor of tokenizer.json puts it first."""
    if isinstance(settings.get("add_bos_token"), bool):
        return bool(settings["add_bos_token"])
    after = table.get("post_processor")
    steps = after.get("processors") if isinstance(after, dict) and after.get("type") == "Sequence" else [after]
    for step in steps if isinstance(steps, list) else []:
        if isinstance(step, dict) and step.get("type") == "TemplateProcessing":
            match step.get("single"), step.get("special_tokens"):
                case [{"SpecialToken": {"id": name}}, *_], {**tokens} if isinstance(name, str):
                    token = tokens.get(name)
                    return isinstance(token, dict) and token.get("ids") == [bos]
    return False


def _configured(checkpoint: Checkpoint, key: str) -> list[int]:
    """Return the token ids under ``key``, one or a list, in generation_config.json or else in config.json; [] if both
    lack the key.

    Raise TextError for a value that is not a token id.
    """
    for name in (GENERATION, CONFIG):
        if name == GENERATION and not checkpoint.has(name):
            continue
        value = (checkpoint.config if name == CONFIG else checkpoint.json(name, MAX_CONFIG_BYTES)).get(key)
        values = value if isinstance(value, list) else [] if value is None else [value]
        where = checkpoint.folder / name
        if len(values) > MOST_ENDS:
            raise TextError(f"{where}: {key} lists {len(values)} tokens, at most {MOST_ENDS} are allowed")
        for token in values:
            if type(token) is not int or not 0 <= token < MAX_TOKENS:
                raise TextError(f"{where}: {key} is {quote(str(token), 40)}, not a token id")
        if values:
            return values
    return []


def _template(checkpoint: Checkpoint, settings: Mapping[str, Any]) -> str | None:
    """Return the chat template, None if there is none: the file chat_template.jinja, else ``chat_template`` of
    tokenizer_config.json, which is a text or a list of texts of which one is named "default"."""
    path = Path(checkpoint.folder / TEMPLATE)
    if path.is_file():
        with open(path, "rb") as file:
            return file.read(4 * MAX_SOURCE + 4).decode("utf-8", "replace")
    value = settings.get("chat_template")
    if isinstance(value, list):
        named = {t.get("name"): t.get("template") for t in value if isinstance(t, dict)}
        value = named.get("default")
    return value if isinstance(value, str) else None


def _content(token: Any) -> str | None:
    """Return the string of a control token, which a config file stores as a string or as an object; None if neither."""
    value = token.get("content") if isinstance(token, dict) else token
    return value if isinstance(value, str) and value else None


def _is_token(token: Any) -> bool:
    return (
        isinstance(token, dict) and isinstance(token.get("content"), str) and bool(token["content"])
        and type(token.get("id")) is int and 0 <= token["id"] < MAX_TOKENS
    )  # fmt: skip


def _vocab(table: Mapping[str, Any]) -> dict[str, int]:
    model = table.get("model")
    vocab = model.get("vocab") if isinstance(model, dict) else None
    return vocab if isinstance(vocab, dict) else {}


def _started(table: Mapping[str, Any], where: str) -> tuple[LimitedProcess, dict[str, int]]:
    """Start the process in which the library encodes texts; return it and the vocabulary (token -> id).

    It loads ``table`` for texts at the start of a prompt (FIRST), and a variant for texts after a control token
    (LATER). Raise TextError if the library refuses the table.
    """
    tables = list(dict.fromkeys(json.dumps(variant) for variant in (table, _continued(table))))
    opening = {"do": "tokenizers", "tables": tables}
    process = LimitedProcess(f"{where}: the tokenizers library", opening, size=sum(map(len, tables)))
    return process, process.open()["vocab"]


def _continued(value: Any) -> Any:
    """Return the tokenizer definition for texts that follow a control token: without the space that ``Metaspace`` with
    ``prepend_scheme`` "first" puts before the first text of a prompt."""
    if isinstance(value, dict) and value.get("type") == "Metaspace" and value.get("prepend_scheme") == "first":
        return {**value, "prepend_scheme": "never"}
    if isinstance(value, dict):
        return {key: _continued(item) if key in _STEPS else item for key, item in value.items()}
    return [_continued(item) for item in value] if isinstance(value, list) else value


def _strings(ids: Mapping[str, int], where: str) -> list[str]:
    """Return the string of each token id; "" for unused ids."""
    if not ids or max(ids.values()) >= MAX_TOKENS:
        raise TextError(f"{where}: no tokens, or one whose id is {MAX_TOKENS} or more")
    strings = [""] * (max(ids.values()) + 1)
    for string, i in ids.items():
        strings[i] = string
    return strings
