"""Base class of the tokenizers for models other than DeepSeek: control strings, and prompts from chat templates.

Plain text never yields control tokens: rendered text is cut at its control strings before it is encoded, and control
strings in the messages of a conversation are made unrecognisable, by an inserted mark, while the template renders them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..errors import TextError
from . import protocol

if TYPE_CHECKING:
    from .template import ChatTemplate

_MARK = "\ufdd0"
"""A noncharacter inserted into control strings of messages, so that they are not recognised in rendered text."""
FIRST, LATER = 0, -1
"""Position of a text in a prompt: at its start, or after a control token."""
_SURROGATE = re.compile("[\ud800-\udfff]")

Span = int | tuple[int, str]
"""A token id, or a text to encode as (FIRST or LATER, text)."""


class ControlStrings:
    """Base class of tokenizers whose control tokens are not DeepSeek's.

    _control  string -> token id of all tokens that are recognised in rendered text
    where     name of the tokenizer's file, for error messages
    template  the chat template; None if there is none: a prompt is then plain text that the model continues
    """

    where: str
    template: ChatTemplate | None
    profile = None
    user = assistant = think_open = think_close = dsml = -1

    def _begin_and_end(self, bos: int, eos: int, ends: Iterable[int], adds_bos: bool, count: int) -> None:
        """Set the tokens that begin and end texts; raise TextError for an id outside a vocabulary of ``count``."""
        ends = list(ends)
        for name, token in (("bos", bos), ("eos", eos), *(("an end", token) for token in ends)):
            if not -1 <= token < count:
                raise TextError(f"{self.where}: {name} is token {token}, but the vocabulary has {count}")
        self.bos, self.eos, self.adds_bos = bos, eos, adds_bos and bos >= 0
        self.ends = frozenset(token for token in (eos, *ends) if token >= 0)

    def special_id(self, string: str) -> int:
        """Return the id of one of DeepSeek's control strings, -1 if this vocabulary lacks it; raise KeyError for any
        other string."""
        known = {protocol.BOS: self.bos, protocol.EOS: self.eos}
        known |= {protocol.THINK_OPEN: self.think_open, protocol.THINK_CLOSE: self.think_close}
        return (dict.fromkeys((*protocol.SPECIALS, *protocol.LATER), -1) | known)[string]

    def with_split(self, split: Any) -> Any:
        """Raise TextError: only DeepSeek's pre-tokenizer can be replaced."""
        raise TextError(f"{self.where}: its pre-tokenizer cannot be replaced")

    def _recognise(self, control: Mapping[str, int], unguarded: Collection[str] = ()) -> None:
        """Set the strings that are recognised as tokens in rendered text.

        control    string -> token id
        unguarded  those of them that are ordinary text (such as runs of spaces) and may also come from messages
        """
        self._control = dict(control)
        self._pattern, self._texts = longest_first(self._control), longest_first(unguarded)
        guarded = [string for string in self._control if string not in unguarded]
        self._marked = longest_first(guarded) if guarded else None

    @property
    def renders(self) -> bool:
        """Return whether prompts are rendered by a template."""
        return self.template is not None

    @property
    def chats(self) -> bool:
        """Return whether there is a chat template."""
        return self.template is not None

    def _encoded(self, spans: Sequence[Span]) -> list[int]:
        """Return the token ids of a sequence of tokens and texts."""
        raise NotImplementedError

    def _spans(self, text: str, pattern: re.Pattern[str] | None = None) -> list[Span]:
        """Cut a rendered text at its control strings, or at those that ``pattern`` matches."""
        spans: list[Span] = []
        at = 0
        for match in (pattern or self._pattern).finditer(text):
            spans += [(LATER if at else FIRST, text[at : match.start()]), self._control[match.group()]]
            at = match.end()
        return [*spans, (LATER if at else FIRST, text[at:])]

    def chat(
        self, messages: Sequence[Mapping[str, Any]], *, tools: Sequence[Any] | None = None, answer: bool = True,
        thinking: str = "none",
    ) -> list[int]:  # fmt: skip
        """Encode a conversation with the model's own template; messages cannot inject control tokens.

        messages  dicts with role, content and other keys that the template uses; if the last one has a true ``prefix``,
                  the prompt ends with its content, for the model to continue
        tools     tools as dicts in the OpenAI API's form
        answer    end with the start of the assistant's turn
        thinking  thinking mode; the template only learns whether it is "none"

        Raise TextError if there is no template or it fails.
        """
        if self.template is None:
            raise TextError(f"{self.where}: there is no chat template")
        guarded = [{key: self._guarded(value) for key, value in message.items()} for message in messages]
        prefix = guarded[-1]["content"].strip() if guarded and guarded[-1].pop("prefix", False) else None
        answer = answer and not prefix
        text = self.template.render(guarded, tools=tools, answer=answer, enable_thinking=thinking != "none")
        if prefix:
            whole, content = messages[-1]["content"], text.rfind(prefix)
            if content < 0:
                raise TextError(f"{self.where}: its chat template changes the message that is to be continued")
            text = text[: content + len(prefix)] + whole[len(whole.rstrip()) :]
        spans = [s if isinstance(s, int) else (s[0], s[1].replace(_MARK, "")) for s in self._spans(clean(text))]
        return self._encoded(spans)

    def _guarded(self, value: Any) -> Any:
        """Insert a mark into each control string in the text of a message, nested values included; ``chat`` removes
        the marks after rendering."""
        if isinstance(value, str):
            value = clean(value).replace(_MARK, "\ufffd")
            return self._marked.sub(lambda m: m[0][0] + _MARK + m[0][1:], value) if self._marked else value
        if isinstance(value, dict):
            return {key: self._guarded(item) for key, item in value.items()}
        return [self._guarded(item) for item in value] if isinstance(value, (list, tuple)) else value


def longest_first(strings: Collection[str]) -> re.Pattern[str]:
    """Return a pattern that matches any of the strings, the longest first; without strings it never matches."""
    return re.compile("|".join(map(re.escape, sorted(strings, key=len, reverse=True))) or r"(?!)")


def clean(text: str | bytes) -> str:
    """Return a text as str that other libraries accept: invalid UTF-8 and surrogates become U+FFFD."""
    if isinstance(text, bytes):
        return text.decode("utf-8", "replace")
    return _SURROGATE.sub("\ufffd", text)
