"""Turns the generated text into the deltas that a client sees: separates reasoning, parses tool calls, cuts at stops.

Each generated piece (a token's text) gives one delta, with the output that no later text can change.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from ..generate import Piece
from ..text.dsml_events import ArgumentsDelta, CallStart, Event, Failed, Generated, ReasoningDelta, TextDelta
from ..text.dsml_parser import DsmlParser
from ..text.official_parser import OfficialParser
from ..text.protocol import THINK_CLOSE, THINK_OPEN, WHITESPACE
from ..text.stream import StopHolder
from .answer import CallDelta, Delta, Finish


class AnswerReader:
    """Splits an answer into text, reasoning and tool calls as it is generated.

    Stop strings are searched in the visible text only. Whether a piece is reasoning is decided while decoding, from
    token ids, not by the text. Answers in the later chat formats (0731, v4.1) are different: they are read as
    DeepSeek's own parser reads them, which ``official`` does.

    tools      search for tool-call markup (docs/explanation/text.md 5)
    stop       the stop strings
    unstopped  number of tokens at the start of the answer in which stop strings are ignored; has no effect if our own
               parser reads tool calls
    official   parser for the later chat formats, None for the first one

    If the model forgot ``</think>`` and its reasoning ends in a complete block of tool calls, the calls are accepted.
    Only white space may follow them; otherwise the block was part of the reasoning. Such a block is held back until the
    answer ends, and unlike others does not end decoding (``done``).
    """

    def __init__(
        self, tools: bool, stop: Sequence[str] = (), *, unstopped: int = 0, official: OfficialParser | None = None
    ):
        self._parser = official or (DsmlParser(False, tools) if tools else None)
        self._inside = DsmlParser(False, tags=False) if tools and official is None else None
        self._official = official
        self._recovered: Generated | None = None
        self._stop, self._unstopped = StopHolder(stop), unstopped
        self._deltas: list[Delta] = []
        self._thinking = official is not None and not official.result.thinking_closed
        self.reasoning_tokens = 0

    def feed(self, piece: Piece) -> Delta:
        """Add a generated piece; return the output that can no longer change, as a possibly empty delta."""
        self._deltas.append(self._fed(piece))
        return self._deltas[-1]

    def _fed(self, piece: Piece) -> Delta:
        self.reasoning_tokens += piece.thinking and piece.token is not None
        self._unstopped -= piece.token is not None
        if self._official is not None:
            tag = "" if piece.thinking == self._thinking else THINK_OPEN if piece.thinking else THINK_CLOSE
            self._thinking = piece.thinking
            return self._delta(self._official.feed(tag + piece.text))
        if piece.thinking:
            self._thinking = True
            return Delta(reasoning=self._thought(piece.text))
        reasoning = self._no_call()
        if self._parser is None:
            return Delta(piece.text if self._unstopped >= 0 else self._stop.feed(piece.text))
        return self._delta(self._parser.feed(piece.text), reasoning)

    def finish(self, ended: str = "", thinking: bool = False) -> Delta:
        """End the answer and return the output that was held back until now, as a delta.

        ended     how decoding ended ("stop", "length", ...; "" if ``done`` ended it)
        thinking  whether decoding ended inside reasoning
        """
        inside = self._inside
        if thinking and inside is not None and inside.done and ended != Finish.CANCELLED:
            self._recovered = inside.result
            calls = tuple(CallDelta(i, call.name, call.arguments) for i, call in enumerate(inside.result.calls))
            self._deltas.append(Delta(calls=calls))
            return self._deltas[-1]
        rest = Delta(reasoning=self._no_call())
        if self._parser is not None:
            rest = self._delta(self._parser.finish(), rest.reasoning)
        self._deltas.append(replace(rest, text=rest.text + self._stop.finish(), stopped=self.stopped))
        return self._deltas[-1]

    def _thought(self, text: str) -> str:
        """Add reasoning and return what can be shown of it; markup that may turn out to be a tool call is held back."""
        if self._inside is None:
            return text
        certain = _text(self._inside.feed(text))
        outcome = self._inside.result
        if outcome.complete and outcome.trailing.strip(WHITESPACE):
            self._inside = DsmlParser(False, tags=False)
            return certain + outcome.raw_block + self._thought(outcome.trailing)
        if outcome.error is not None:
            rest = certain + _text(self._inside.finish())
            self._inside = DsmlParser(False, tags=False)
            return rest
        return certain

    def _no_call(self) -> str:
        """End the reasoning; return the text that was held back as a possible tool call, which it was not."""
        if self._inside is None or not self._thinking:
            return ""
        self._thinking = False
        rest, outcome = _text(self._inside.finish()), self._inside.result
        self._inside = DsmlParser(False, tags=False)
        return outcome.raw_block + outcome.trailing if outcome.complete else rest

    @property
    def text(self) -> str:
        """Return the visible answer so far."""
        return "".join(delta.text for delta in self._deltas)

    @property
    def reasoning(self) -> str:
        """Return the reasoning so far."""
        return "".join(delta.reasoning for delta in self._deltas)

    @property
    def greedy(self) -> bool:
        """Return whether the next token must be picked greedily, because it is markup of a tool call."""
        return isinstance(self._parser, DsmlParser) and self._parser.greedy

    @property
    def in_block(self) -> bool:
        """Return whether a block of tool calls has begun and not yet ended."""
        return self._parser is not None and self._parser.in_block

    @property
    def done(self) -> bool:
        """Return whether decoding should end, because a block of tool calls is complete or a stop string matched."""
        return self._stop.stopped is not None or (self._parser is not None and self._parser.done)

    @property
    def stopped(self) -> str:
        """Return the stop string that matched, "" if none did."""
        return self._stop.stopped or ""

    @property
    def generated(self) -> Generated:
        """Return the parsed answer (empty if no tools were offered), which is final after ``finish``."""
        if self._recovered is not None:
            return self._recovered
        return Generated() if self._parser is None else self._parser.result

    def reason(self, engine: str) -> Finish:
        """Return the finish reason to report to the client, which is "tool_calls" if tools were called.

        ``engine`` is why decoding ended: "stop", "length", "cancelled", or "" if ``done`` ended it.
        """
        if engine == Finish.CANCELLED:
            return Finish.CANCELLED  # an incomplete tool call is then not the model's mistake
        if self._official is not None and engine == Finish.LENGTH:
            return Finish.LENGTH  # an incomplete tool call is passed on, as DeepSeek's parser does
        return Finish(self.generated.finish_reason(engine or Finish.STOP))

    def _delta(self, events: Iterable[Event], reasoning: str = "") -> Delta:
        text, calls, void = "", [], False
        for event in events:
            match event:
                case TextDelta(fragment):
                    text += fragment if self._official and self._unstopped >= 0 else self._stop.feed(fragment)
                case ReasoningDelta(fragment):
                    reasoning += fragment
                case CallStart(index, name):
                    calls.append(CallDelta(index, name))
                case ArgumentsDelta(index, fragment):
                    calls.append(CallDelta(index, arguments=fragment))
                case Failed():
                    calls, void = [], True
        return Delta(text, reasoning=reasoning, calls=tuple(calls), void=void)


def _text(events: Iterable[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, TextDelta))
