"""Converts the tokenizer of a published model to GGUF metadata, for GGUF files made from the model.

    entries, why = vocabulary_entries(source)          why: the reason if it cannot be converted, else ""

Byte-level vocabularies (tokenizer.json) become tokenizer.ggml.model "gpt2" with the name of their pre-tokenizer, and
llama2.c's tokenizer.bin, whose pieces have scores, becomes "llama". The chat template and all tokens that end an answer
are included. Any other tokenizer (SentencePiece's) is left out and reported, not approximated.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..errors import Ds4Error, TextError
from .keys import BYTE, CONTROL, EMBEDDING, ENDS_KEY, GGML, MODEL_KEY, NORMAL, TEMPLATE_KEY, UNKNOWN, UNUSED, USER
from .library import MAX_CONFIG_BYTES, TOKENIZER_CONFIG, of_checkpoint
from .pieces import SPACE, PieceTokenizer
from .pretokenizers import RULES
from .published import TOKENIZER, definition, vocabulary
from .vocabulary import open_tokenizer

if TYPE_CHECKING:
    from ..weights.safetensors import Checkpoint
    from ..weights.source import TensorSource

MetadataEntry = tuple[str, str, Any]
LLAMA2C_END = 2
"""Id of the end token in tokenizer.bin: a control token, though llama2.c never uses it."""


def vocabulary_entries(source: TensorSource) -> tuple[list[MetadataEntry], str]:
    """Return the metadata entries for the tokenizer of ``source``, and the reason if it cannot be converted, else "".

    There are none if its metadata has a tokenizer already, or without an embedding."""
    if MODEL_KEY in source.metadata or EMBEDDING not in source.tensors:
        return [], ""
    checkpoint, beside = getattr(source, "checkpoint", None), getattr(source, "vocabulary", None)
    try:
        if checkpoint is not None and checkpoint.has(TOKENIZER):
            return _byte_level(checkpoint, source.tensors[EMBEDDING].dims[1]), ""
        if beside is not None and beside.exists():
            return _pieces(open_tokenizer(source)), ""  # type: ignore[arg-type]
    except Ds4Error as error:
        return [], f"the tokenizer is left out: {error}"
    return [], ""


def _byte_level(checkpoint: Checkpoint, rows: int) -> list[MetadataEntry]:
    """Return the metadata entries for a tokenizer.json.

    rows: number of rows of the embedding; ids below it that have no token become unused tokens.
    """
    table, where = definition(checkpoint), checkpoint.folder / TOKENIZER
    tokenizer = of_checkpoint(checkpoint)
    pre = _pattern(table, str(where))
    tokens, merges = vocabulary(checkpoint)
    if len(tokens) > rows:
        raise TextError(f"{where}: {len(tokens)} tokens, but the embedding has {rows} rows")
    known = {token["id"]: CONTROL if token.get("special") else USER for token in table.get("added_tokens") or []}
    used_ids = set(table["model"]["vocab"].values()) | known.keys()
    tokens += [f"[unused {i}]" for i in range(len(tokens), rows)]
    settings = checkpoint.json(TOKENIZER_CONFIG, MAX_CONFIG_BYTES) if checkpoint.has(TOKENIZER_CONFIG) else {}
    more: list[MetadataEntry] = []
    if isinstance(settings.get("add_bos_token"), bool):  # else the reader's default for this pre-tokenizer applies
        more.append((GGML + "add_bos_token", "bool", settings["add_bos_token"]))
    if tokenizer.template is not None:
        more.append((TEMPLATE_KEY, "string", tokenizer.template.source))
    kinds = [known.get(i, NORMAL if i in used_ids else UNUSED) for i in range(rows)]
    return [
        (MODEL_KEY, "string", "gpt2"), (GGML + "pre", "string", pre), (GGML + "tokens", "string[]", tokens),
        (GGML + "token_type", "i32[]", kinds), (GGML + "merges", "string[]", merges), *_ends(tokenizer), *more,
    ]  # fmt: skip


def _pattern(table: Mapping[str, Any], where: str) -> str:
    """Return the name that GGUF files use for the pre-tokenizer of a tokenizer.json; raise TextError if none fits.

    table: the parsed tokenizer.json; where: its path, for the error message.
    """
    before = table.get("pre_tokenizer")
    steps = (before.get("pretokenizers") if before.get("type") == "Sequence" else [before]) if before else []
    own: list[str] = []
    match steps:
        case [*cuts, {"type": "ByteLevel", "add_prefix_space": False} as last]:
            for cut in cuts:
                match cut:
                    case {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}:
                        own.append(pattern)
                    case {"type": "Digits", "individual_digits": True}:
                        own.append(r"\p{N}")
                    case _:
                        own.append("")  # a pattern that no rule has, so that no name fits
            own += RULES["gpt-2"].patterns if last.get("use_regex", True) else ()
    normalizer = (table.get("normalizer") or {}).get("type")
    whole = bool((table.get("model") or {}).get("ignore_merges"))
    names = [
        name for name, rule in RULES.items()
        if list(rule.patterns) == own and whole == rule.whole and normalizer == ("NFC" if rule.nfc else None)
    ]  # fmt: skip
    if not names:
        raise TextError(f"{where}: no known GGUF pre-tokenizer name matches this tokenizer")
    return names[0]


def _pieces(tokenizer: PieceTokenizer) -> list[MetadataEntry]:
    """Return the metadata entries for a vocabulary of scored pieces; byte tokens get names such as <0x0A>."""
    names, kinds = [], []
    pieces, scores, bytes_at = tokenizer.tables()
    at = {token: byte for byte, token in enumerate(bytes_at) if token >= 0}
    for i, piece in enumerate(pieces):
        kind = UNKNOWN if i == tokenizer.unknown else CONTROL if i in (tokenizer.bos, LLAMA2C_END) else NORMAL
        spelled = piece.strip(b"\n") if kind == CONTROL else piece  # tokenizer.bin has "\n<s>\n"
        names.append(f"<0x{at[i]:02X}>" if i in at else spelled.decode("utf-8", "replace").replace(" ", SPACE))
        kinds.append(BYTE if i in at else kind)
    return [
        (MODEL_KEY, "string", "llama"), (GGML + "tokens", "string[]", names),
        (GGML + "scores", "f32[]", scores), (GGML + "token_type", "i32[]", kinds),
        (GGML + "unknown_token_id", "u32", tokenizer.unknown), *_ends(tokenizer),
    ]  # fmt: skip


def _ends(tokenizer: Any) -> list[MetadataEntry]:
    entries: list[MetadataEntry] = [
        (f"{GGML}{name}_token_id", "u32", token)
        for name, token in (("bos", tokenizer.bos), ("eos", tokenizer.eos))
        if token >= 0
    ]
    if len(tokenizer.ends) > 1:
        entries.append((ENDS_KEY, "u32[]", sorted(tokenizer.ends)))
    return entries
