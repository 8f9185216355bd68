"""Turns against a scripted target: calls and results, everything that can end a turn, and the order that it leaves."""

from __future__ import annotations

import json
import os

import pytest

from ds4ref.agent.log import Log
from ds4ref.agent.loop import Agent, Outcome, Settings
from ds4ref.agent.permit import TOOLS, Permit
from ds4ref.agent.shell import Shell
from ds4ref.agent.tools import Toolbox
from ds4ref.cancellation import Cancellation
from ds4ref.errors import ContextError, TargetError
from ds4ref.targets import CallDelta, Delta, Finish
from ds4ref.text.chat import render
from tests.agent.scripted import Scripted, Watched, calls, says


class Setting:
    """An agent with everything around it."""

    def __init__(self, workspace, *script, log: Log | None = None, **settings):
        self.target, self.view = Scripted(*script), Watched()
        self.tools = Toolbox(workspace, Permit(TOOLS), Shell(workspace.root, os.environ))
        self.agent = Agent(self.target, self.tools, Settings(**settings), self.view, log or Log())
        self.cancel = Cancellation()

    def turn(self, text: str = "Go.") -> Outcome:
        try:
            return self.agent.turn(text, self.cancel)
        finally:
            self.check_order()

    @property
    def roles(self) -> str:
        """The first letters of all roles."""
        return "".join(message.role[0] for message in self.agent.messages)

    @property
    def results(self) -> list[str]:
        return [message.content for message in self.agent.messages if message.role == "tool"]

    def check_order(self) -> None:
        """Check that every call has its result right behind it, and nothing else is a result."""
        messages = list(self.agent.messages)
        assert messages[0].role == "system"
        while messages:
            message = messages.pop(0)
            assert message.role != "tool"
            for call in message.calls:
                assert messages.pop(0).result_ids == (call.id,)


@pytest.fixture
def setting(workspace):
    return lambda *script, **options: Setting(workspace, *script, **options)


# --- answers and calls


def test_a_new_conversation_forgets_what_was_read(setting, folder) -> None:
    (folder / "a").write_text("one\n")
    edit = ("edit", {"path": "a", "old": "one", "new": "ONE"})
    case = setting(calls(("read", {"path": "a"})), says("x"))
    case.turn()
    (folder / "a").write_text("one two\n")
    case.target.script = [calls(edit), says("x")]
    case.turn()
    assert "has changed since it was read" in case.results[1]
    case.agent.clear()
    case.target.script = [calls(edit), says("x")]
    case.turn()
    assert case.roles == "suata" and (folder / "a").read_text() == "ONE two\n"


def test_thoughts_and_markup_go_back_as_they_came(setting) -> None:
    markup = "\n\n<markup>"
    case = setting(calls(("list", {}), text="So", reasoning="hm", markup=markup), says("x"), says("y"))
    case.turn()
    case.turn("More")
    message = case.target.requests[1].prompt.messages[2]
    assert (message.content, message.reasoning, message.raw_dsml) == ("So", "hm", markup)
    prompt = "".join(part.text for part in render(case.target.requests[2].prompt.messages, case.tools.schemas).parts)
    assert prompt.count(markup) == 1 and prompt.count("<tool_result>.: empty</tool_result>") == 1


def test_every_failure_is_a_result(setting) -> None:
    wanted = [("nosuch", {}), ("read", {"path": "../secret.txt"}), ("read", "not json"), ("read", ""), ("", {}),
              ("bash", {"command": "exit 1"})]  # fmt: skip
    case = setting(calls(*wanted), says("I see."))
    assert case.turn() == Outcome("done")
    assert [r.startswith("Tool error: ") for r in case.results] == [True] * 5 + [False]
    sent = [json.loads(call.arguments) for call in case.target.requests[1].prompt.messages[2].calls]
    assert sent[1:4] == [{"path": "../secret.txt"}, {"arguments": "not json"}, {}]


# --- what ends a turn


def test_a_turn_limit(setting) -> None:
    case = setting(calls(("list", {})), max_turns=3)
    assert case.turn() == Outcome("turns", "stopped after 3 answers (--max-turns)")
    assert len(case.target.requests) == 3 and case.roles == "suatatat"
    case.target.script = [says("Now.")]
    assert case.turn("Go on") == Outcome("done")


def test_a_length_limit_runs_no_half_call(setting) -> None:
    case = setting(calls(("bash", '{"command":"rm -rf a'), text="I'll", finish=Finish.LENGTH), max_tokens=9)
    assert case.turn() == Outcome("cut", "the answer was cut off: at most 9 tokens (-n)")
    assert case.roles == "sua" and case.agent.messages[-1].content == "I'll" and not case.agent.messages[-1].calls


@pytest.mark.parametrize("finish, ending", [("stop", "done"), ("error", "done"), ("length", "cut"),
                                            ("cancelled", "interrupted")])  # fmt: skip
def test_broken_markup_is_answered_so_that_the_model_can_retry(setting, finish, ending) -> None:
    block = "<tool_calls>broken"
    broken = [Delta("Let me. "), Delta(calls=(CallDelta(0, "bash", '{"command":"x'),)), Delta(block, void=True),
              Delta(finish=finish, error="the tool call block is not closed")]  # fmt: skip
    case = setting(broken, says("Sorry."))
    assert case.turn().ending == ending
    if ending == "done":
        texts = [(m.role, m.content) for m in case.target.requests[1].prompt.messages[2:]]
        reason = "Tool error: invalid DSML tool call: the tool call block is not closed"
        assert texts == [("assistant", f"Let me. {block}"), ("user", reason)]
        assert case.view.events[1] == "!invalid DSML tool call: the tool call block is not closed"
    assert setting([Delta("x", void=True), Delta(finish="stop")], max_turns=4).turn().ending == "turns"


@pytest.mark.parametrize("error", [TargetError("no answer"), ContextError("too long"), MemoryError()], ids=str)
def test_a_target_that_fails_takes_the_message_back(setting, error) -> None:
    case = setting(error, says("Now."))
    assert case.turn("Hi") == Outcome("failed", str(error) or "not enough memory", taken_back=True)
    assert case.roles == "s" and case.turn("Hi") == Outcome("done") and case.roles == "sua"


# --- Ctrl-C


def test_ctrl_c_amid_an_answer(setting) -> None:
    def interrupted(request):
        yield Delta("Half an ")
        case.cancel.press()
        yield Delta(calls=(CallDelta(0, "bash", '{"command":"touch x"}'),))
        yield Delta(finish=Finish.CANCELLED)

    case = setting(interrupted, says("More."))
    assert case.turn() == Outcome("interrupted", "interrupted")
    assert case.agent.messages[-1].content == "Half an " and not case.agent.messages[-1].calls
    case.cancel = Cancellation()
    assert case.turn("On") == Outcome("done")
    case = setting([Delta(finish=Finish.CANCELLED)])
    assert case.turn() == Outcome("interrupted", "interrupted", taken_back=True) and case.roles == "s"


def test_ctrl_c_amid_the_calls(setting, folder) -> None:
    """What ran has its result, what did not is told so, and the session goes on."""
    write = ("write", {"path": "x", "content": ""})
    case = setting(calls(("bash", {"command": "touch begun; sleep 1000"}), write), says("k"))
    case.tools.shell.clock = lambda: case.cancel.press() or 0.0 if (folder / "begun").exists() else 0.0
    assert case.turn() == Outcome("interrupted", "interrupted")
    ran, other = case.results
    assert ran.startswith("bash status=done") and "\nstopped by the user\n" in ran
    assert other == "Tool error: interrupted by the user; this call was not run" and os.listdir(folder) == ["begun"]
    case.cancel = Cancellation()
    assert case.turn("On") == Outcome("done")


# --- the transcript


def test_the_log_has_everything(setting, tmp_path) -> None:
    path = tmp_path / "log.jsonl"
    log = Log(str(path))
    log("session", root="r", empty="", none=None)
    setting(calls(("list", {}), text="So", reasoning="hm"), says("Done \u20ac\ud800."), log=log).turn("Hi")
    setting(TargetError("gone"), log=Log(str(path))).turn("Hi")
    lines = [json.loads(line) for line in path.read_bytes().splitlines()]
    times = [line.pop("time") for line in lines]
    assert times == sorted(times) and lines[2].pop("seconds") >= 0 and path.stat().st_mode & 0o777 == 0o600
    call = {"name": "list", "arguments": "{}", "id": "id0"}
    usage = {"prompt": 10, "completion": 5, "cached": None, "reasoning": None, "drafted": None}
    assert lines[:4] == [
        {"type": "session", "root": "r"}, {"type": "user", "text": "Hi"},
        {"type": "assistant", "text": "So", "reasoning": "hm", "calls": [call], "finish": "tool_calls", "usage": usage},
        {"type": "tool", "name": "list", "id": "id0", "result": ".: empty"},
    ]  # fmt: skip
    assert lines[4]["text"] == "Done \u20ac\ud800." and lines[5] == {"type": "end", "ending": "done"}
    assert (lines[7]["finish"], lines[7]["error"]) == ("error", "gone")
    assert lines[8:] == [{"type": "end", "ending": "failed", "why": "gone", "taken_back": True}]
