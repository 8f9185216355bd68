"""Converts generated pieces to the deltas that a client sees: reasoning separated, tool calls parsed, stop strings cut.

Each piece gives one delta with everything that is certain by then.
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

    Stop strings are searched in the visible text only. Whether a piece is reasoning is decided by the generation, from
    token ids, not by the text; but an answer of a later profile is read by ``official`` as DeepSeek's parser reads it.

    tools     search for tool-call markup (docs/explanation/text.md 5)
    unstopped  number of tokens at the start of an answer without tools in which no stop string counts
    official   the parser of such an answer

    A complete block of calls at the very end of unclosed reasoning, where the model forgot ``</think>``, is accepted.
    Only white space may follow; otherwise the block was part of the reasoning. The block is held back until the answer
    ends and does not end decoding (``done``).
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
        """Feed a piece and return a delta with the output that is now certain, possibly empty."""
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
        """Return a delta with the output that was held back to the end.

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
        """Return the reasoning that is certain: a block in it may turn out to be a call."""
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
        """End the reasoning and return what was held back of it as a possible call."""
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
        """Return whether the next token is markup of a call, which is decoded greedily."""
        return isinstance(self._parser, DsmlParser) and self._parser.greedy

    @property
    def in_block(self) -> bool:
        """Return whether a block of calls is open."""
        return self._parser is not None and self._parser.in_block

    @property
    def done(self) -> bool:
        """Return whether further output is ignored: a block of calls is closed, or a stop string matched."""
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
        """Return why the answer ended, given how decoding ended: "stop", "length", "cancelled", or "" where ``done``
        ended it."""
        if engine == Finish.CANCELLED:
            return Finish.CANCELLED  # what was cut off is no mistake of the model's
        if self._official is not None and engine == Finish.LENGTH:
            return Finish.LENGTH  # a call that was cut off is passed on
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
