"""Make text from models and packs safe to show on a terminal; logs keep the original text.

Control characters become visible symbols, so that an escape sequence is shown, not executed. Characters about whose
width terminals disagree (joiners, bidirectional marks, variation selectors, skin tones, flags) are dropped.
"""

from __future__ import annotations

import regex

MAX_MARKS = 6
"""Maximum number of combining marks kept per character."""
OPEN, CLOSE = "<think>", "</think>"

_DROPPED = regex.compile(
    r"[\p{Cf}\ufe00-\ufe0f\U000e0100-\U000e01ef\U0001f3fb-\U0001f3ff\U0001f1e6-\U0001f1ff\u115f\u1160\u3164\uffa0]"
)
_UNSAFE = regex.compile(r"[\p{Cc}\p{Cs}\p{Zl}\p{Zp}--\n]", regex.V1)
_MANY_MARKS = regex.compile(rf"(\p{{M}}{{{MAX_MARKS}}})\p{{M}}+")


def clean(text: str) -> str:
    """Replace characters that a terminal would act on, except line feeds."""
    if text.isascii() and text.isprintable():
        return text
    text = _DROPPED.sub("", text.replace("\r\n", "\n").replace("\t", "    "))
    text = _UNSAFE.sub(lambda match: chr(0x2400 + ord(match[0])) if match[0] < " " else "\ufffd", text)
    return _MANY_MARKS.sub(r"\1", text)


def one_line(text: str) -> str:
    """Make ``text`` safe as ``clean`` does, and put it on one line with single spaces."""
    return " ".join(clean(text).split())


def split_thinking(reasoning: str, output: str) -> list[tuple[bool, str]]:
    """Split an answer, finished or not, into (is_thought, text) parts without think tags.

    If the target does not report reasoning separately, it is found by tags in ``output``: an opening tag at the
    beginning, or only the first closing tag, since the opening tag may be in the prompt.
    """
    body = output.lstrip()
    before, closed, after = body.removeprefix(OPEN).partition(CLOSE)
    if not reasoning.strip():
        if closed or body.startswith(OPEN):
            reasoning, output = before, after
    elif closed and not before.strip():  # the end of the reported reasoning
        output = after
    elif body.startswith(OPEN):
        output = body.removeprefix(OPEN)
    thought = reasoning.removeprefix(OPEN).replace(CLOSE, "").lstrip("\n")
    parts = [(True, thought), (False, output.lstrip("\n"))]
    return [(is_thought, text) for is_thought, text in parts if text]
