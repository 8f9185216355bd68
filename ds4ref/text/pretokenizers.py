"""Pre-tokenizers of byte-level vocabularies in GGUF files: how text is cut, by their name (``tokenizer.ggml.pre``).

The patterns are those of llama.cpp's vocabulary code, in the syntax of tokenizer.json.
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
_UNCASED = rf"[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+{_SHORT}?|\p{{N}}{{1,3}}|{_PATHS}|{_SPACE}"
_JAIS_SPACE = "|".join(rf"\s{{{n}}}(?!\S)" for n in (512, 256, 128, 64, 32, 16, 8, 4)) + r"|\s{1,2}(?!\S)|\s{1}"
_QWEN2 = rf"{_SHORT}|{_WORDS}|\p{{N}}|{_MARKS}|{_SPACE}"
_QWEN35 = rf"{_SHORT}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACE}"


def _cased(ending: str) -> str:
    """Return a pattern of words in which upper-case letters come only first, each followed by ``ending``."""
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
_THREES_FROM_THE_RIGHT = r"[^\p{N}]*\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))"
_LINES = r"[^\n]+|[\n]+"
_HAN_THAI_HANGUL = "[一-龥ࠀ-一가-퟿]+"
_BAILING = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
_EXAONE_MOE = (
    rf"{_SHORT}|[^\r\n\p{{L}}\p{{N}}]?(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|\p{{N}}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+"
)
_LETTERS = (  # with case, except lower-case Armenian, mathematical letters, and those newer than Unicode 10
    "[[\\p{Lu}\\p{Ll}\\p{Lt}\u0295]&&[^\u0560-\u0588\u10c7-\u10ff\u1c80-\u1c8a\u2d00-\u2d2d\ua790-\uab6d"
    "\U00010570-\U000105bc\U00010d50-\U00010d85\U00016e40-\U00016ed3\U0001d400-\U0001d7cb\U0001df00-\U0001df96]]"
)
_KOREAN_CHINESE_RUNS = r"[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|" + _CJK
_ASIAN_RUNS = "[一-鿿㐀-䶿豈-﫿぀-ゟ゠-ヿ･-ﾟ⼀-⿟เ-๿຀-໿ក-៿က-႟ꩠ-ꩿꧠ-꧿가-힯ᄀ-ᇿ]+"
_HAN = "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0002ebef\U0002f800-\U0002fa1f"
_KIMI = rf"[{_HAN}]+|[^\r\n\p{{L}}\p{{N}}]?(?:(?![{_HAN}])\p{{L}})+{_SHORT}?|\p{{N}}{{1,3}}|{_MARKS}|{_SPACE}"
_PUNCTUATED = " ?[^(\\s|.,!?…。，、।۔،)]+"


class Rule(NamedTuple):
    """How text is cut before tokens are merged.

    patterns  applied one after the other: in the pieces left by the previous ones, matches become pieces of their own
    nfc       whether text is first normalized to Unicode NFC
    whole     whether a piece that is itself a token is used without applying merges
    bos       whether a text starts with BOS if the file does not say
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
    "glm4 glm5": Rule((_LLAMA3,), whole=True),
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
    "ufakzeka": Rule((_QWEN2.removeprefix(_SHORT + "|"),)),
    "jais-2": Rule((_LLAMA3.replace(r"\s+(?!\S)|\s+", _JAIS_SPACE),)),
    "spark2_5": Rule((_THREES, _CJK, _DEEPSEEK.replace(r"[\r\n]*|" + _SPACE, r"|[\r\n]|\s+(?!\S)|\s+"), _DIGIT)),
    "deepseek-llm": Rule(
        (r"[\r\n]", rf"\s?{_LETTERS}+", r"\s?[!-/:-~！-／：-～‘-‟　-。]+", r"\s+$", _HAN_THAI_HANGUL, r"\p{N}+")
    ),
    "tiny_aya cohere2moe": Rule((_THREES_FROM_THE_RIGHT, _UNCASED)),
    "youtu": Rule((_KOREAN_CHINESE_RUNS, _UNCASED.replace(r"\p{N}{1,3}", _DIGIT)), whole=True),
    "afmoe": Rule((_THREES_FROM_THE_RIGHT, _ASIAN_RUNS, _DEEPSEEK)),
    "kimi-k2": Rule((_KIMI,)),
    "default": Rule((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]")),
}
RULES = {name: rule for names, rule in _RULES.items() for name in names.split()}
"""Rules by the name of the pre-tokenizer; "default" is for files that do not name one."""
