"""Three hundred texts of many kinds on which tokenizers are compared: written out, and mixed from a fixed seed."""

from __future__ import annotations

import random

WRITTEN = (
    "", " ", "  ", "   ", "\n", "\n\n", "\n \n", "\t", "\t\t", " \t ", "\r\n", "\r\n\r\n", "a", " a", "a ",
    "  a  ", "\n a", "a\n",
    "Hello, world!", "The quick brown fox jumps over the lazy dog.", "HELLO WORLD", "hELLO wORLD",
    "I'm you're he'll they've we'd it's",
    "I'M YOU'RE HE'LL", "don’t", "'s 's's", "3.14159", "1234567890", "1,234,567.89", "0x1F4A9",
    "12345678901234567890123456789", "1 2 3 4",
    "007", "v1.2.3-rc4+build5", "²³¹ ½ ⅓ Ⅷ ①", "٠١٢٣٤٥٦٧٨٩", "१२३४५", "def f(x):\n    return x + 1\n",
    "if (a) {\n\tb();\n\t\tc();\n}\n",
    "for i in range(10):\n        print(i)\n                break",
    "class A:\n  def g(self):\n      pass\n\n\n", "x  =  y   +    z",
    "SELECT * FROM t WHERE a='b' AND c>=10;", "#include <stdio.h>\nint main(void){return 0;}\n",
    "git log --oneline | head -5 && ls -la ~/",
    '{"a": [1, 2.5, null, true], "b": {"c": "d"}}', "<html><body><h1>Title</h1></body></html>",
    "<b>bold</b> and <i>it</i>",
    "<table>\n<tr><td>1</td><td>2</td></tr>\n</table>", "<a href='x'>link</a>", "<br/><hr>",
    "<ul>\n  <li>one</li>\n  <li>two</li>\n</ul>",
    "<code>x</code><sub>2</sub><sup>3</sup>", "< b >", "<<b>>", "</b", "<strong", "<B>",
    "&lt;b&gt; &amp; &nbsp;", "<div><span></span></div>",
    "# Title\n\n- one\n- two\n\n```python\nprint('x')\n```\n", "| a | b |\n|---|---|\n| 1 | 2 |",
    "**bold** _it_ ~~no~~ `code`",
    "https://example.com/a/b?c=d&e=f#g", "user.name+tag@example.co.uk", "C:\\Windows\\System32", "../../etc/passwd",
    "😀", "😀😃😄", "👨‍👩‍👧‍👦 family", "🏳️‍🌈", "👍🏽", "🇩🇪🇫🇷", "☃️ ❤ ♥️", "😀 text 😀", "你好，世界！",
    "漢字かな交じり文", "カタカナ・テスト",
    "한국어 텍스트입니다.", "こんにちは 世界", "中文 English 混合 text", "繁體中文", "مرحبا بالعالم",
    "العربية لغة جميلة.", "שלום עולם", "فارسی",
    "हिन्दी में पाठ", "বাংলা", "ไทยภาษา", "தமிழ்", "Привет, мир!", "Ελληνικά", "ქართული", "Հայերեն", "ᚠᚢᚦ",
    "ᏣᎳᎩ", "𝔘𝔫𝔦𝔠𝔬𝔡𝔢", "𐍈", "\U0001f9ff\U000e0001",
    "e\u0301", "n\u0303o\u0308", "Z\u0351\u036b\u0343a\u0321l\u0321g\u0322o", "é è ê ë", "ﬁ ﬂ", "Ａ Ｂ Ｃ",
    "İstanbul ıssız", "ß ẞ", "naïve café résumé",
    "a\u200bb", "a\u200db", "\ufeffbom", "a\u00a0b", "a\u2003b", "a\u3000b", "\u2028", "\u202eright to left",
    "soft\u00adhyphen", "\ue000",
    "\ufffd", "\x01\x02\x03", "\x7f", "bell\x07", "\x1b[31mred\x1b[0m", "nul", "▁", "▁▁a▁", "a ▁ b", "<0x41>",
    "<0x0A><0x0a>", "<s>", "</s>",
    "<s> a </s>", "<bos>", "<eos>x", "<pad>", "<unk>", "<mask>", "<unused0>",
    "<start_of_turn>user\nhi<end_of_turn>", "[multimodal]",
    "<|im_start|>user\nhi<|im_end|>", "<|endoftext|>", "<|endoftext", "|endoftext|>", "<repo_name>x<file_sep>y",
    "<empty_output>",
    "<|begin_of_text|>", "<think>a</think>", "<｜User｜>hi<｜Assistant｜>", "[INST] hi [/INST]",
    "<start_of_image>", "a" * 400, "ab" * 300,
    "x" * 2000, "=" * 100, "-" * 77, "." * 33, "!?" * 40, "0" * 65, "9" * 128, "\n" * 40, " " * 70, "\t" * 40,
    " \n" * 20, "\n\t" * 20,
    "Donaudampfschifffahrtselektrizitätenhauptbetriebswerkbauunterbeamtengesellschaft",
    "Llanfairpwllgwyngyllgogerychwyrndrobwllllantysiliogogogoch",
    "pneumonoultramicroscopicsilicovolcanoconiosis " * 3, "antidisestablishmentarianism",
    "CamelCaseIdentifier snake_case_identifier kebab-case",
    "ACGT" * 60, "aGVsbG8gd29ybGQ=" * 8, "lorem ipsum dolor sit amet, consectetur adipiscing elit " * 6,
    "“quoted” ‘single’ «guillemets» „low“",
    "a—b–c-d…", "€100 £5 ¥7 ₹9", "∀x∈ℝ: x²≥0 ⇒ ∑ᵢ xᵢ² ≥ 0", "\\frac{a}{b} \\alpha_{i}^{2}", "a\\nb\\tc",
    "100% @user #tag $x ^y &z *w (p) [q] {r}",
)  # fmt: skip
"""Some of each kind: words, numbers, code, markup, scripts, control characters, names of control tokens, runs."""
FRAGMENTS = (
    " ", "  ", "    ", "\n", "\n\n", "\t", "word", " Word", "'s", "123", "4567", "<b>", "</td>", "<x>", "é",
    "e\u0301", "漢", "字", "😀", "👩‍💻", "ع", "ह",
    "\u200d", ".", ",", "...", "_", "==", "()", "{}", '"', "\\", "/", "https://", "ing", "A", "z", "\r\n",
    "<s>", "</s>", "\x00", "▁", "½", "–",
)  # fmt: skip


def texts(count: int = 300) -> list[str]:
    """Return ``count`` different texts, the same ones every time."""
    draw, found = random.Random(41), list(WRITTEN)
    while len(found) < count:
        found.append("".join(draw.choices(FRAGMENTS, k=draw.randint(2, 40))))
    assert len(set(found)) == count
    return found
