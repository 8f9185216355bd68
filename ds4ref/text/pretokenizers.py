"""How byte-level vocabularies of GGUF files cut text, by the name of the pre-tokenizer (``tokenizer.ggml.pre``).

Patterns are those of llama.cpp's vocabulary code, in the syntax of tokenizer.json.
"""

from __future__ import annotations

from typing import NamedTuple

_WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_SHORT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_MARKS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_SPACE = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"(?:(?=\p{L})[^a-z])", r"(?:(?=\p{L})[^A-Z])"  # as llama.cpp writes these classes
_PATHS = r" ?[^\s\p{L}\p{N}]+[\r\n/]*"

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3 = rf"{_SHORT}|{_WORDS}|\p{{N}}{{1,3}}|{_MARKS}|{_SPACE}"
_QWEN2 = rf"{_SHORT}|{_WORDS}|\p{{N}}|{_MARKS}|{_SPACE}"
_QWEN35 = rf"{_SHORT}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACE}"


def _cased(ending: str) -> str:
    """Words that start with upper-case letters or have none, each with ``ending``."""
    start = r"[^\r\n\p{L}\p{N}]?"
    return f"{start}{_UPPER}*{_LOWER}+{ending}|{start}{_UPPER}+{_LOWER}*{ending}"


_TEKKEN = rf"{_cased('')}|\p{{N}}|{_PATHS}|{_SPACE}"
_GPT4O = rf"{_cased(_SHORT + '?')}|\p{{N}}{{1,3}}|{_PATHS}|{_SPACE}"
_CJK = "[一-龥぀-ゟ゠-ヿ]+"
_DEEPSEEK = (
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|"""
    + _SPACE
)
_DIGIT, _THREES = r"\p{N}", r"\p{N}{1,3}"
_LINES = r"[^\n]+|[\n]+"
_HAN_THAI_HANGUL = "[一-龥ࠀ-一가-퟿]+"
_BAILING = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
_EXAONE_MOE = (
    rf"{_SHORT}|[^\r\n\p{{L}}\p{{N}}]?(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|\p{{N}}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+"
)
_PUNCTUATED = " ?[^(\\s|.,!?…。，、।۔،)]+"


class Rule(NamedTuple):
    """How text is cut and merged.

    patterns  each isolates its matches in the pieces that the one before has left
    nfc       text is normalized
    whole     a piece that is a token is not taken apart
    bos       a text starts with BOS unless the file says otherwise
    """

    patterns: tuple[str, ...]
    nfc: bool = False
    whole: bool = False
    bos: bool = False


_RULES = {
    "qwen2 deepseek-r1-qwen": Rule((_QWEN2,), nfc=True),
    "kormo f2llmv2 stablelm2 hunyuan megrez solar-open grok-2": Rule((_QWEN2,)),
    "qwen35": Rule((_QWEN35,)),
    "laguna": Rule((_LINES, _QWEN2)),
    "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano": Rule(
        (_LLAMA3,), whole=True, bos=True
    ),
    "smaug-bpe dbrx chatglm-bpe": Rule((_LLAMA3,)),
    "glm4": Rule((_LLAMA3,), whole=True),
    "minicpm5": Rule((_THREES, _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}+")), whole=True),
    "gpt-2 phi-2 jina-es jina-de jina-v2-es jina-v2-de jina-v1-en jina-v2-code roberta-bpe modern-bert gigachat "
    "a.x-4.0 mellum exaone4 mpt olmo jais trillion granite-docling": Rule((_GPT2,)),
    "smollm starcoder refact command-r codeshell exaone minerva-7b mellum2": Rule((_DIGIT, _GPT2)),
    "deepseek-v3 joyai-llm hunyuan-dense hy_v4": Rule((_THREES, _CJK, _DEEPSEEK)),
    "deepseek-coder": Rule((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _HAN_THAI_HANGUL, _DIGIT)),
    "tekken": Rule((_TEKKEN,), whole=True, bos=True),
    "gpt-4o llama4 kanana2 talkie minimax-m2": Rule((_GPT4O,)),
    "seed-coder": Rule((rf"{_SHORT}|{_WORDS}|\p{{N}}{{1}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_SPACE}",)),
    "bailingmoe bailingmoe2 llada-moe": Rule((_BAILING,)),
    "exaone-moe": Rule((_EXAONE_MOE,)),
    "falcon": Rule((r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, "[0-9][0-9][0-9]")),
    "superbpe": Rule((r"\p{N}+", "(?=([0-9]{3})+(?![0-9]))")),
    "poro-chat bloom gpt3-finnish": Rule((_PUNCTUATED,)),
    "viking": Rule((_PUNCTUATED, _DIGIT)),
    "default": Rule((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]")),
}
RULES = {name: rule for names, rule in _RULES.items() for name in names.split()}
"""Rule by name; a file without a name has ``default``."""
