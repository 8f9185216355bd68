"""From what a generation emits to what a client sees: reasoning apart, tool calls taken out of their markup, stop
strings cut. One piece in, one delta out, each as early as it is certain."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from ..generate import Piece
from ..text.dsml_events import ArgumentsDelta, CallStart, Event, Failed, Generated, ReasoningDelta, Syntax, TextDelta
from ..text.dsml_parser import DsmlParser
from ..text.stream import StopHolder
from .answer import CallDelta, Delta, Finish


class AnswerReader:
    """``tools``: markup is looked for at all (docs/text.md 5). ``stop`` is looked for in the visible text alone.

    Whether a piece is reasoning the generation knows better than the text: it goes by token ids.
    """

    def __init__(self, tools: bool, stop: Sequence[str] = ()):
        self._parser = DsmlParser(False, tools) if tools else None
        self._stop = StopHolder(stop)
        self._said: list[Delta] = []
        self.reasoning_tokens = 0

    def feed(self, piece: Piece) -> Delta:
        """What this piece makes certain; empty if nothing."""
        self._said.append(self._fed(piece))
        return self._said[-1]

    def _fed(self, piece: Piece) -> Delta:
        self.reasoning_tokens += piece.thinking and piece.token is not None
        if piece.thinking:
            return Delta(reasoning=piece.text)
        if self._parser is None:
            return Delta(self._stop.feed(piece.text))
        return self._delta(self._parser.feed(piece.text))

    def finish(self) -> Delta:
        """What was held back to the end."""
        rest = Delta() if self._parser is None else self._delta(self._parser.finish())
        self._said.append(replace(rest, text=rest.text + self._stop.finish(), stopped=self.stopped))
        return self._said[-1]

    @property
    def text(self) -> str:
        """The visible answer so far."""
        return "".join(delta.text for delta in self._said)

    @property
    def reasoning(self) -> str:
        """What was thought so far."""
        return "".join(delta.reasoning for delta in self._said)

    @property
    def greedy(self) -> bool:
        """Whether the next token is markup of a call, which nobody wants to be drawn."""
        return self._parser is not None and self._parser.state.greedy

    @property
    def in_block(self) -> bool:
        """Whether a block of calls is open."""
        return self._parser is not None and self._parser.state is not Syntax.OUTSIDE

    @property
    def done(self) -> bool:
        """Whatever follows counts for nothing: a block of calls is closed, or a stop string was found."""
        return self._stop.stopped is not None or (self._parser is not None and self._parser.done)

    @property
    def stopped(self) -> str:
        """The stop string that was found."""
        return self._stop.stopped or ""

    @property
    def generated(self) -> Generated:
        """The parsed answer (empty where no tools were offered); final after ``finish``."""
        return Generated() if self._parser is None else self._parser.result

    def reason(self, engine: str) -> Finish:
        """How the answer ended, given how decoding did: "stop", "length", "cancelled"; "" where ``done`` ended it."""
        if engine == Finish.CANCELLED:
            return Finish.CANCELLED  # what was cut off is no mistake of the model's
        return Finish(self.generated.finish_reason(engine or Finish.STOP))

    def _delta(self, events: Iterable[Event]) -> Delta:
        text, reasoning, calls, void = "", "", [], False
        for event in events:
            match event:
                case TextDelta(found):
                    text += self._stop.feed(found)
                case ReasoningDelta(found):
                    reasoning += found
                case CallStart(index, name):
                    calls.append(CallDelta(index, name))
                case ArgumentsDelta(index, fragment):
                    calls.append(CallDelta(index, arguments=fragment))
                case Failed():
                    calls, void = [], True
        return Delta(text, reasoning=reasoning, calls=tuple(calls), void=void)
