"""The turns of an agent: a message of the user, answers and tool calls in turn, until an answer calls nothing.

The conversation is a list of messages, sent whole with every request, so that any target will do. Whatever ends a turn,
Ctrl-C, a limit or an error, leaves it in order: every call has a result, and the next message can follow.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Protocol

from ..cancellation import Cancellation
from ..errors import Ds4Error, TargetError
from ..targets import Completion, Delta, Finish, Message, Prompt, Request, Target, ToolCall, collect
from ..text import rawjson
from .edit import readable
from .log import Log
from .tools import Result, Toolbox
from .workspace import shown_name

MAX_CALLS = 64
"""Calls of one answer that are run."""
DEFAULT_SYSTEM = "You are a helpful coding assistant running inside ds4-agent."

_RULES = """\
You work in the folder {root} through tools; paths are relative to it, and nothing outside it can be reached.
Look before you change: list and search find things, read shows a file with line numbers, some hundred lines at a time.
To change a file use edit, not write: either old, text that is there exactly once, and new; or the numbers of lines \
that you have read, and new. After an edit numbers behind it may have changed; the result tells. An edit of a file \
that changed since you read it is refused: read it again.
A result that starts with "Tool error:" says what went wrong; put that right instead of repeating the call. If \
permission is denied, do not try to get there another way.
Check what you did (run it, read it), then answer in a few sentences. Do not print files that the user can open."""


class Ending(enum.Enum):
    """How a turn ended."""

    DONE = "done"
    INTERRUPTED = "interrupted"
    CUT = "cut"
    TURNS = "turns"
    FAILED = "failed"


@dataclass(frozen=True)
class Outcome:
    """How a turn ended and why, in one line, "" if it is done. ``taken_back``: there was no answer at all, and the
    conversation is as it was before."""

    ending: Ending
    why: str = ""
    taken_back: bool = False


@dataclass
class Settings:
    """``max_turns``: most answers to one message of the user. The others as in ``targets.Request``."""

    system: str = DEFAULT_SYSTEM
    thinking: str = "high"
    max_tokens: int = 50_000
    temperature: float = 1.0
    top_p: float = 1.0
    min_p: float = 0.05
    seed: int | None = None
    max_turns: int = 50


class View(Protocol):
    """Whoever watches."""

    def delta(self, delta: Delta) -> None:
        """More of an answer."""

    def answered(self) -> None:
        """The answer is over."""

    def call(self, title: str) -> None:
        """A tool is going to run."""

    def result(self, result: Result) -> None:
        """What it gave."""


def system_text(root: str, extra: str) -> str:
    """What the model is told first; ``extra`` is the user's own."""
    return _RULES.format(root=shown_name(root)) + (f"\n\n{readable(extra)}" if extra else "")


class Agent:
    """A conversation with ``target``, which may call ``tools``."""

    def __init__(self, target: Target, tools: Toolbox, settings: Settings, view: View, log: Log):
        self.target, self.tools, self.settings, self.view, self.log = target, tools, settings, view, log
        self.messages: list[Message] = []
        self.answers = self.calls = self.generated = 0
        self.clear()

    def clear(self) -> None:
        """Forget the conversation, and what was read in it."""
        self.tools.forget()
        self.messages = [Message("system", system_text(self.tools.workspace.root, self.settings.system))]

    def turn(self, text: str, cancel: Cancellation) -> Outcome:
        """Answer ``text``. Errors of the target become the outcome; the conversation stays in order in any case."""
        before = len(self.messages)
        self.messages.append(Message("user", readable(text)))
        self.log("user", text=text)
        outcome = Outcome(Ending.FAILED, "stopped")
        try:
            outcome = self._rounds(cancel)
        except (Ds4Error, MemoryError) as error:
            outcome = Outcome(Ending.FAILED, str(error) or "not enough memory")
        finally:
            self._answer_open_calls()
            if len(self.messages) == before + 1 and outcome.ending in (Ending.FAILED, Ending.INTERRUPTED):
                del self.messages[before:]
                outcome = replace(outcome, taken_back=True)
            self.log("end", ending=outcome.ending.value, why=outcome.why, taken_back=outcome.taken_back or None)
        return outcome

    def _rounds(self, cancel: Cancellation) -> Outcome:
        for _ in range(self.settings.max_turns):
            done, void = self._answer(cancel)
            runs = done.finish in (Finish.TOOL_CALLS, Finish.STOP)
            calls = self._named(done.calls) if runs else ()
            self._keep(done, calls)
            if done.finish == Finish.CANCELLED:
                return Outcome(Ending.INTERRUPTED, "interrupted")
            if done.finish == Finish.LENGTH:
                return Outcome(Ending.CUT, f"the answer was cut off: at most {self.settings.max_tokens} tokens (-n)")
            if void:  # the model can put it right
                self._complain(f"Tool error: invalid DSML tool call: {done.error or 'malformed markup'}")
                continue
            if done.finish == Finish.ERROR:
                return Outcome(Ending.FAILED, f"{self.target.name}: {done.error or 'the answer ended with an error'}")
            if not calls:
                return Outcome(Ending.DONE)
            self._run(calls, cancel)
            if cancel.requested:
                return Outcome(Ending.INTERRUPTED, "interrupted")
        turns = self.settings.max_turns
        return Outcome(Ending.TURNS, f"stopped after {turns} answer{'s' * (turns != 1)} (--max-turns)")

    def _answer(self, cancel: Cancellation) -> tuple[Completion, bool]:
        """The next answer, and whether it has calls that came to nothing. What a failing target had said is kept."""
        settings, void = self.settings, False
        self.tools.settle()
        request = Request(
            Prompt.conversation(self.messages, self.tools.schemas, settings.thinking), settings.max_tokens,
            settings.temperature, settings.top_p, settings.min_p, settings.seed, cancel=cancel,
        )  # fmt: skip

        def watched() -> Iterator[Delta]:
            nonlocal void
            for delta in self.target.stream(request):
                void |= delta.void
                self.view.delta(delta)
                yield delta

        try:
            done = collect(watched())
        except TargetError as error:
            if isinstance(error.partial, Completion):
                self._keep(error.partial, ())
            raise
        finally:
            self.view.answered()
        self.answers += 1
        self.generated += done.usage.completion or 0
        return done, void

    def _keep(self, done: Completion, calls: tuple[ToolCall, ...]) -> None:
        """An answer as a message, if it says anything; ``calls`` are those that will be run."""
        if done.text or done.reasoning or calls:
            block = done.markup if calls and done.markup else None
            sent = tuple(map(_sendable, calls))
            self.messages.append(Message("assistant", done.text, done.reasoning, sent, block))
        self.log(
            "assistant", text=done.text, reasoning=done.reasoning, calls=[asdict(call) for call in calls] or None,
            finish=str(done.finish), error=done.error, usage=asdict(done.usage), seconds=round(done.seconds, 3),
        )  # fmt: skip

    def _named(self, calls: tuple[ToolCall, ...]) -> tuple[ToolCall, ...]:
        """The calls, each with an id of its own."""
        named: list[ToolCall] = []
        for call in calls:
            self.calls += 1
            taken = {other.id for other in named}
            named.append(replace(call, id=call.id if call.id and call.id not in taken else f"call_{self.calls}"))
        return tuple(named)

    def _run(self, calls: tuple[ToolCall, ...], cancel: Cancellation) -> None:
        for at, call in enumerate(calls):
            self.view.call(self.tools.title(call))
            if cancel.requested:
                result = _refusal("interrupted by the user; this call was not run")
            elif at >= MAX_CALLS:
                result = _refusal(f"too many calls in one answer; the first {MAX_CALLS} were run")
            else:
                result = self.tools.run(call, cancel)
            self._reply(call, result.text)
            self.view.result(result)
            self.log("tool", name=call.name, id=call.id, result=result.text, failed=result.failed or None)

    def _reply(self, call: ToolCall, text: str) -> None:
        self.messages.append(Message("tool", text, result_ids=(call.id,)))

    def _complain(self, text: str) -> None:
        """A result that belongs to no call."""
        self.messages.append(Message("user", text))
        self.view.result(Result(text, text.removeprefix("Tool error: "), failed=True))
        self.log("tool", result=text, failed=True)

    def _answer_open_calls(self) -> None:
        """Calls that have no result, because something ended the turn amid them, get one that says so."""
        results = 0
        for message in reversed(self.messages):
            if message.role != "tool":
                break
            results += 1
        for call in message.calls[results:]:
            self._reply(call, _refusal("interrupted; this call was not run to its end").text)


def _sendable(call: ToolCall) -> ToolCall:
    """A call as it goes back with the next request: its arguments a JSON object even if the model wrote none. There are
    servers that would fail over it for the rest of the conversation."""
    text = call.arguments.strip()
    with suppress(ValueError):
        if text.startswith("{") and rawjson.value_end(text) == len(text):
            return call
    return replace(call, arguments=json.dumps({"arguments": call.arguments}) if text else "{}")


def _refusal(why: str) -> Result:
    return Result(f"Tool error: {why}", why, failed=True)
