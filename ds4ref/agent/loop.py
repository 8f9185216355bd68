"""The loop of an agent: after the user's message, the model's answers and the results of its tool calls alternate,
until an answer calls no tool.

The conversation is a list of messages. The whole list is sent with every request, so that it works with any target.
However a turn ends (Ctrl-C, a limit, an error), the conversation stays valid: every call has a result, and the next
message can follow.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Protocol

from ..cancellation import Cancellation
from ..errors import Ds4Error, TargetError
from ..targets import Completion, Delta, Finish, Message, Prompt, Request, Target, ToolCall, collect
from ..text import rawjson
from .log import Log
from .tools import Result, Toolbox
from .workspace import shown_name

DEFAULT_SYSTEM = "You are a helpful coding assistant running inside ds4-agent."
_RULES = """\
You work in the folder {root} through tools; paths are relative to it, and nothing outside it can be reached.
Look before you change: list and search find things, read shows a file with line numbers, some hundred lines at a time.
To change a file use edit, not write: old, text that is there exactly once, and new. An edit of a file that changed \
since you read it is refused: read it again.
A result that starts with "Tool error:" says what went wrong; put that right instead of repeating the call. If \
permission is denied, do not try to get there another way.
Check what you did (run it, read it), then answer in a few sentences. Do not print files that the user can open."""


@dataclass(frozen=True)
class Outcome:
    """How a turn, the agent's work on one message of the user, ended.

    ending       "done", "interrupted", "cut" (by -n), "turns" (by --max-turns) or "failed"
    why          the reason in one line
    taken_back   whether there was no answer at all, so that the user's message was removed from the conversation
    """

    ending: str
    why: str = ""
    taken_back: bool = False


@dataclass
class Settings:
    """Settings of an agent.

    max_turns   maximum number of answers to one message of the user
    the others are described in ``targets.Request``
    """

    system: str = DEFAULT_SYSTEM
    thinking: str = "high"
    max_tokens: int = 50_000
    temperature: float = 1.0
    top_p: float = 1.0
    min_p: float = 0.05
    seed: int | None = None
    max_turns: int = 50


class View(Protocol):
    """The user interface of an agent, which shows answers and tool calls as they happen."""

    def delta(self, delta: Delta) -> None:
        """Show the next part of an answer."""

    def answered(self) -> None:
        """Mark the end of an answer."""

    def call(self, title: str) -> None:
        """Show the title of a tool call before it runs."""

    def result(self, result: Result) -> None:
        """Show the result of the call."""


class Agent:
    """A conversation with the model ``target``, which may call ``tools``."""

    def __init__(self, target: Target, tools: Toolbox, settings: Settings, view: View, log: Log):
        self.target, self.tools, self.settings, self.view, self.log = target, tools, settings, view, log
        self.messages: list[Message] = []
        self.calls = 0
        self.clear()

    def clear(self) -> None:
        """Start a new conversation, and forget which files the model saw."""
        self.tools.seen.clear()
        rules, extra = _RULES.format(root=shown_name(self.tools.workspace.root)), _sendable(self.settings.system)
        self.messages = [Message("system", f"{rules}\n\n{extra}" if extra else rules)]

    def turn(self, text: str, cancel: Cancellation) -> Outcome:
        """Answer the user's message ``text``, running the tool calls of its answers until an answer has none; return
        how the turn ended.

        Errors of the target become the outcome "failed"; the conversation stays valid in any case.
        """
        before = len(self.messages)
        self.messages.append(Message("user", _sendable(text)))
        self.log("user", text=text)
        outcome = Outcome("failed", "stopped")
        try:
            outcome = self._rounds(cancel)
        except (Ds4Error, MemoryError) as error:
            outcome = Outcome("failed", str(error) or "not enough memory")
        finally:
            self._answer_open_calls()
            if len(self.messages) == before + 1 and outcome.ending in ("failed", "interrupted"):
                del self.messages[before:]
                outcome = replace(outcome, taken_back=True)
            self.log("end", ending=outcome.ending, why=outcome.why, taken_back=outcome.taken_back or None)
        return outcome

    def _rounds(self, cancel: Cancellation) -> Outcome:
        """Get answers and run their tool calls until an answer has no call, or something ends the turn; return how it
        ended."""
        for _ in range(self.settings.max_turns):
            done, void = self._answer(cancel)
            calls = self._with_ids(done.calls) if done.finish in (Finish.TOOL_CALLS, Finish.STOP) else ()
            self._keep(done, calls)
            if done.finish == Finish.CANCELLED:
                return Outcome("interrupted", "interrupted")
            if done.finish == Finish.LENGTH:
                return Outcome("cut", f"the answer was cut off: at most {self.settings.max_tokens} tokens (-n)")
            if void:  # the model is told, and can correct it
                self._reply(Result.error(f"invalid DSML tool call: {done.error or 'malformed markup'}"))
            elif done.finish == Finish.ERROR:
                return Outcome("failed", f"{self.target.name}: {done.error or 'the answer ended with an error'}")
            elif not calls:
                return Outcome("done")
            for call in calls:
                self.view.call(self.tools.title(call))
                stopped = Result.error("interrupted by the user; this call was not run")
                self._reply(stopped if cancel.requested else self.tools.run(call, cancel), call)
            if cancel.requested:
                return Outcome("interrupted", "interrupted")
        return Outcome("turns", f"stopped after {self.settings.max_turns} answers (--max-turns)")

    def _answer(self, cancel: Cancellation) -> tuple[Completion, bool]:
        """Return the next answer, and whether it contains malformed tool calls. If the target fails, keep the text that
        arrived before."""
        settings, void = self.settings, False
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
            return collect(watched()), void
        except TargetError as error:
            if isinstance(error.partial, Completion):
                self._keep(error.partial, ())
            raise
        finally:
            self.view.answered()

    def _keep(self, done: Completion, calls: tuple[ToolCall, ...]) -> None:
        """Append an answer to the conversation unless it is empty; ``calls``: its tool calls that will be run."""
        if done.text or done.reasoning or calls:
            sent, markup = tuple(map(_with_object, calls)), (done.markup or None) if calls else None
            self.messages.append(Message("assistant", done.text, done.reasoning, sent, markup))
        self.log(
            "assistant", text=done.text, reasoning=done.reasoning, calls=[asdict(call) for call in calls] or None,
            finish=str(done.finish), error=done.error, usage=asdict(done.usage), seconds=round(done.seconds, 3),
        )  # fmt: skip

    def _reply(self, result: Result, call: ToolCall | None = None) -> None:
        """Append a tool result to the conversation; the result of malformed markup, for which there is no call, as a
        message of the user."""
        message = Message("tool", result.text, result_ids=(call.id,)) if call else Message("user", result.text)
        self.messages.append(message)
        self.view.result(result)
        about = {"name": call.name, "id": call.id} if call else {}
        self.log("tool", **about, result=result.text, failed=result.failed or None)

    def _with_ids(self, calls: tuple[ToolCall, ...]) -> tuple[ToolCall, ...]:
        """Return the calls, each with a unique id."""
        named: dict[str, ToolCall] = {}
        for call in calls:
            self.calls += 1
            own = call.id if call.id and call.id not in named else f"call_{self.calls}"
            named[own] = replace(call, id=own)
        return tuple(named.values())

    def _answer_open_calls(self) -> None:
        """Append a result to the conversation for each call of the last answer that was interrupted before it had
        one."""
        results = 0
        for message in reversed(self.messages):
            if message.role != "tool":
                break
            results += 1
        for call in message.calls[results:]:
            text = Result.error("interrupted; this call was not run to its end").text
            self.messages.append(Message("tool", text, result_ids=(call.id,)))


def _with_object(call: ToolCall) -> ToolCall:
    """Return a call whose arguments are a JSON object: with other arguments in the conversation, servers reject every
    later request."""
    text = call.arguments.strip()
    with suppress(ValueError):
        if text.startswith("{") and rawjson.value_end(text) == len(text):
            return call
    return replace(call, arguments=json.dumps({"arguments": call.arguments}) if text else "{}")


def _sendable(text: str) -> str:
    """Return text in which lone surrogates, which stand for bytes that are not valid UTF-8, are replaced."""
    return text.encode("utf-8", "replace").decode()
