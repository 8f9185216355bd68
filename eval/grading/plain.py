"""From what a model put out to plain text: what is outside of thinking, in one alphabet, without markup.

Each step of ``STEPS`` is a function from text to text and takes time linear in its length, whatever the text is. What
comes out: lines without indentation, letters, digits, dashes, quotes and spaces in their ASCII forms, boxes (LaTeX's,
GLM's) between ``BOX`` and ``UNBOX``. Accented letters and other alphabets stay as they are.
"""

from __future__ import annotations

import functools
import re
import unicodedata

from . import words

BOX, UNBOX = "\x02", "\x03"
LOOKALIKES = dict(zip("АВСЕНІЈΑΒΕΗΙ", "ABCEHIJABEHI", strict=True))
"""Cyrillic and Greek capitals that look like letters of choices."""

# ----------------------------------------------------------------------------------------------------- characters


@functools.cache
def characters() -> dict[int, str]:
    """What replaces a character, by code point; the others stay, and some of them are here only because
    that is found faster. Made at first use."""
    found = {code: chr(code) if code == 10 or code >= 0x20 else "" for code in range(0x3100)}
    for code in (*range(0x80, 0x1FC00), *range(0xE0000, 0xE01F0)):
        new = _replacement(chr(code))
        if new is not None:
            found[code] = new
    return found | {ord(a): b for a, b in _SINGLE.items()}


_PAIRS = "◁< ▷> ‘' ’' ′' ‚' „\" ٫. 。. ।. ٬, ،, 、, ∶: ～~ ∼~ ≃≈ ⁄/ ∕/ −- ⁃- ⋅· ∙· °° ·· İI"
_SINGLE = {
    **dict.fromkeys("\r\v\f\x85", "\n"),
    **dict.fromkeys("\t•‣", " "),
    **{pair[0]: pair[1:] for pair in (*_PAIRS.split(), "…...", "→->", "⇒=>", "⟹=>", "∴so ", "\x7f")},
    **{chr(0x1F1E6 + i): chr(65 + i) for i in range(26)},  # regional indicators
    **{chr(start + i): chr(65 + i) for start in (0x1F150, 0x1F170) for i in range(26)},  # black circles and squares
}


def _replacement(c: str) -> str | None:
    kind = unicodedata.category(c)
    if kind in ("Cf", "Cc", "Cs", "Mn", "Me"):  # invisible, lone surrogates, accents of their own
        return ""
    if kind == "Nd":
        return str(unicodedata.decimal(c))
    if kind in ("Zs", "Zl", "Zp"):
        return " " if kind == "Zs" else "\n"
    if kind == "Pd":
        return "-"
    if kind in ("Ps", "Pe", "Pi", "Pf") and not unicodedata.normalize("NFKC", c).isascii():
        return {"Ps": "(", "Pe": ")"}.get(kind, '"')
    if kind == "No" and "<super>" in unicodedata.decomposition(c):
        return "^" + unicodedata.normalize("NFKC", c)
    if kind == "No" and "<fraction>" in unicodedata.decomposition(c):
        return "+" + unicodedata.normalize("NFKC", c).replace("⁄", "/")
    if kind in ("Ll", "Lu", "No", "So", "Po", "Ps", "Pe", "Sm", "Sc") and "<sub>" not in unicodedata.decomposition(c):
        ascii_form = unicodedata.normalize("NFKC", c)
        if (
            ascii_form != c
            and ascii_form.isascii()
            and re.fullmatch(r"\(?[A-Za-z]\)?|\(?[0-9]{1,2}[.)]?|\W", ascii_form)
        ):
            return f" {ascii_form} " if ascii_form[-1:] in "0123456789." and kind == "No" else ascii_form
    return " " if kind == "So" else None


def one_alphabet(text: str) -> str:
    """One form of every letter, digit, dash, quote and space; nothing invisible."""
    text = _COLOURS.sub("", text) if "\x1b" in text else text
    return text.replace("\r\n", "\n").translate(characters())


_COLOURS = re.compile(r"\x1b\[[0-9;]{0,16}[A-Za-z]")

# ------------------------------------------------------------------------------------------------------- thinking

_TAGS = "think|thinking|thought|thoughts|reasoning|reflection|scratchpad|seed:think"
_MARK = re.compile(  # on lower case: a pattern that ignores case cannot be searched for by its first characters
    rf"(?P<open><(?:{_TAGS})>|\[think\]|<\|(?:begin_of_thought|start_thinking)\|>|<\|channel\|>(?:analysis|commentary))"
    rf"|(?P<close></(?:{_TAGS})>|\[/think\]|<\|(?:end_of_thought|end_thinking)\|>|<\|channel\|>final|assistantfinal"
    r"|\.\.\.done thinking\.)"
)
_HINTS = ("think", "thought", "reasoning", "reflection", "scratchpad", "<|channel|>", "assistantfinal", "analysis")
_BEGINS = re.compile(r"analysis(?=[A-Z])|Thinking\.\.\.\n")


def outside_thinking(text: str) -> str:
    """What is not between marks of thinking. The first mark may be a closing one, since the opening one is often part
    of the prompt; a further one is a leftover. A block that never closes is thinking up to its end."""
    low = text.lower()
    if not any(hint in low for hint in _HINTS):
        return text
    parts: list[str] = []
    start, inside, seen = 0, _BEGINS.match(text) is not None, False
    for mark in _MARK.finditer(low):
        if text[mark.start() - 1 : mark.start()] == "`":
            continue  # it is talked about
        opens = mark.lastgroup == "open"
        if not inside and (opens or seen):
            parts.append(text[start : mark.start()])
        start, inside, seen = mark.end(), opens, True
    if not inside:
        parts.append(text[start:])
    return "\n".join(parts)


_TURN = re.compile(
    r"<\|(?:im_end|eot_id|end_of_text|endoftext|end of sentence|eom_id|end|return|user)\|>"
    r"|</s>|<eos>|<end_of_turn>|\[/?INST\]",
    re.IGNORECASE,
)
_SPECIAL = re.compile(r"<\|[\w ]{1,30}\|>")


def one_turn(text: str) -> str:
    """Up to the token that ends the model's turn; other special tokens become line breaks, GLM's boxes boxes."""
    if "<" in text or "INST]" in text:
        for end in _TURN.finditer(text):
            if text[: end.start()].strip():
                text = text[: end.start()]
                break
        text = text.replace("<|begin_of_box|>", BOX).replace("<|end_of_box|>", UNBOX)
        text = _SPECIAL.sub("\n", text)
    return text


# --------------------------------------------------------------------------------------------------------- markup

_FENCE = re.compile(r"^[ >]*+(?:```|~~~)[`~]*+ *+([\w+#.-]*+) *+$", re.MULTILINE)
_PROSE = ("", "text", "txt", "plaintext", "plain", "markdown", "md", "latex", "tex", "json", "math", "output", "answer")


def without_code(text: str) -> str:
    """Without fenced blocks of a programming language. A block that never closes stays."""
    if "```" not in text and "~~~" not in text:
        return text
    parts: list[str] = []
    start, language = 0, None
    for fence in _FENCE.finditer(text):
        if language is None:
            parts.append(text[start : fence.start()])
            start, language = fence.end(), fence[1].lower()
        elif not fence[1]:
            parts.append(text[start : fence.start()] if language in _PROSE else "\n")
            start, language = fence.end(), None
    return "".join([*parts, text[start:]])


def _rules(*rules: tuple[str, str, str]) -> list[tuple[str, re.Pattern[str], str]]:
    """Triples of what has to be there at all, a pattern and what replaces it. Patterns begin with a character where
    they can, and look back from there: they are searched for several times as fast."""
    return [(needle, re.compile(pattern, re.MULTILINE), new) for needle, pattern, new in rules]


def _applied(rules: list[tuple[str, re.Pattern[str], str]], text: str) -> str:
    for needle, pattern, new in rules:
        if needle in text:
            text = pattern.sub(new, text)
    return text


_COMMANDS = _rules(
    ("\\\\", r"\\\\", "\n"),
    ("\\!", r"\\!", ""),
    ("\\", r"\\(?:left|right|displaystyle|textstyle|big[lr]?|Big[lr]?|q?quad)(?![A-Za-z])|\\[,;: ()\[\]{}]", " "),
    ("\\", r"\\([%$#&_])", r"\1"),
    ("\\", r"\\(?:times|cdot)(?![A-Za-z])", "×"),
    ("\\pm", r"\\pm(?![A-Za-z])", "±"),
    ("\\circ", r"\\circ(?![A-Za-z])|\^\\circ(?![A-Za-z])|\^\{\\circ\}", "°"),
    ("\\equiv", r"\\equiv(?![A-Za-z])", "≡"),
    ("\\approx", r"\\approx(?![A-Za-z])", "≈"),
    ("\\", r"\\(?:to|rightarrow|Rightarrow|implies)(?![A-Za-z])", "->"),
    ("mod", r"\\p?mod(?![A-Za-z])", "mod "),
    ("frac", r"([0-9]) ?(?=\\[dtc]?frac(?![A-Za-z]))", r"\1+"),
    ("frac", r"\\[dtc]?frac ?([0-9]) ?([0-9])", r"\1/\2"),
    ("box", r"\\f?boxe?d? ([A-Za-z0-9])(?![A-Za-z0-9])", rf"{BOX}\1{UNBOX}"),
)
_TWO = re.compile(r"\\([dtc]?frac|textcolor) ?\{([^{}]*)\} ?\{([^{}]*)\}")
_ONE = re.compile(r"\\[A-Za-z]{1,20}\*? ?\{[^{}]*\}|\{(?<!\}\{)[^{}]*\}")  # not yet a second argument
_TAKES_TWO = re.compile(r"\\(?:[dtc]?frac|textcolor)")
_STYLES = (
    r"\\(?:text(?:bf|it|rm|sf|tt|up|normal)?|math(?:bf|it|rm|sf|tt|bb|cal)|boldsymbol|bm|emph|underline|mbox|hbox)"
)
_STYLE = re.compile(_STYLES + r"|\\(?:operatorname|label|tag)\*?")
NESTED = 4
"""Levels of braces that are opened, innermost first."""


def without_latex(text: str) -> str:
    """Commands of style, spacing and brackets are gone, fractions are m/n, roots √(...), boxes are marked."""
    if "\\" not in text and "{" not in text:
        return text.replace("$", "")
    text = _applied(_COMMANDS, text)
    for _ in range(NESTED):
        before = text
        if "\\" in text:
            text = _TWO.sub(lambda m: m[3] if m[1] == "textcolor" else f"{m[2]}/{m[3]}", text)
        text = _ONE.sub(_group, text)
        if text == before:
            break
    return text.replace("$", "")


def _group(m: re.Match[str]) -> str:
    command, _, inner = m[0][:-1].partition("{")
    command = command.rstrip()
    if _TAKES_TWO.fullmatch(command):
        return m[0]  # its other argument is not plain yet
    if command in ("\\boxed", "\\fbox"):
        return f"{BOX}{inner}{UNBOX}"
    if command == "\\sqrt":
        return f"√({inner})"
    if command in ("\\begin", "\\end", "\\color"):
        return " "
    return inner if not command or _STYLE.fullmatch(command) else command + inner


_MARKUP = _rules(
    ("~~", r"~~[^~\n]{1,200}~~", ""),
    ("<", r"</?(?:answer|final_answer|solution)>", "\n"),
    ("<", r"</?(?:[biup]|em|strong|span|div|code|pre|sub|sup|font|center|li|ul|ol|td|tr|th|table|mark|h[1-6]|s)>", ""),
    ("<br", r"<br ?/?>", "\n"),
    ("#", r"^[ >#]+", ""),
    ("**", r"\*\*(?<=[0-9]\*\*)(?=[0-9])", "^"),
    ("*", r"\*(?<=[0-9]\*)(?=[0-9(])", "×"),
    (" * ", r" \* (?<=[0-9] \* )(?=[0-9(])", "×"),
    ("*", r"\*(?<=[^\W_]\*)\**(?=[^\W_])", " "),
    ("*", r"\*+", ""),
    ("`", r"`+", ""),
    ("_", r"_(?<![^\W_]_)_*|_+(?![^\W_])", ""),
    ("\\", r"\\(?:blacksquare|square|qed|Box)(?![A-Za-z])", ""),
    ("i.e", r"i\.e\.", "that is"),
    ("D", r"Q\.?E\.?D\b\.?", ""),
    ("∎", r"∎", ""),
    ("--", r"^[-=_ ]+$", ""),
    ("==", r"^[-=_ ]+$", ""),
)


def without_markup(text: str) -> str:
    """Without the marks of Markdown and HTML, and without what is struck out; ``<answer>`` states an answer."""
    text = text.replace("<answer>", "\nAnswer: ") if "<answer>" in text else text
    return _applied(_MARKUP, text)


_ANSWER_CELL = re.compile(
    rf"[\W_]*(?:(?:{words.alternatives(words.FILLER)})[\W_]*)*(?:{words.alternatives(words.ANSWER)})\W*"
)


def without_tables(text: str) -> str:
    """A row of a table whose heading names an answer says "heading: cell"."""
    if "|" not in text:
        return text
    lines = text.split("\n")
    column = None
    for i, line in enumerate(lines):
        if "|" not in line:
            column = None
        elif "-" in line and not line.strip(" |:-"):
            heads = _cells(lines[i - 1]) if i else []
            column = next((k for k, head in enumerate(heads) if _ANSWER_CELL.fullmatch(head[:60].lower())), None)
            lines[i] = ""
        elif column is not None and column < len(cells := _cells(line)):
            lines[i] = f"Answer: {cells[column]}"
    return "\n".join(lines)


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip(" |").split("|")]


_LOOKALIKE = re.compile(rf"[{''.join(LOOKALIKES)}](?<![^\W_].)(?= ?(?:$|[).,:;!?\]\"'|\n{BOX}{UNBOX}]))", re.MULTILINE)


def latin_letters(text: str) -> str:
    """Capitals that look like A to J are taken for them where they stand alone with nothing but an end behind."""
    return text if text.isascii() else _LOOKALIKE.sub(lambda m: LOOKALIKES[m[0]], text)


_SPACES, _LINES = re.compile(r" {2,}"), re.compile(r"\n{3,}")


def tidy(text: str) -> str:
    """Single spaces, at most one empty line, nothing around it."""
    text = _SPACES.sub(" ", text) if "  " in text else text
    text = text.replace(" \n", "\n").replace("\n ", "\n")
    return (_LINES.sub("\n\n", text) if "\n\n\n" in text else text).strip()


STEPS = (
    *(one_alphabet, outside_thinking, one_turn, without_code, without_latex, without_markup, without_tables),
    *(latin_letters, tidy),
)


def plain(text: str) -> str:
    """All steps in turn."""
    for step in STEPS:
        text = step(text)
    return text
