"""Turns against a scripted target: calls and results, everything that can end a turn, and the order that it leaves."""

from __future__ import annotations

import json
import os

import pytest

from ds4ref.agent import loop
from ds4ref.agent.log import Log
from ds4ref.agent.loop import Agent, Ending, Settings
from ds4ref.agent.permit import TOOLS, Answer, Permit
from ds4ref.agent.shell import Shell
from ds4ref.agent.tools import Toolbox
from ds4ref.cancellation import Cancellation
from ds4ref.errors import ContextError, DataError, TargetError
from ds4ref.targets import CallDelta, Delta, Finish
from ds4ref.text.chat import render
from tests.agent.scripted import Scripted, Watched, calls, says


class Setting:
    """An agent with everything around it."""

    def __init__(self, workspace, *script, log: Log | None = None, permit: Permit | None = None, **settings):
        self.target, self.view = Scripted(*script), Watched()
        self.tools = Toolbox(workspace, permit or Permit(TOOLS), Shell(workspace.root, os.environ))
        self.agent = Agent(self.target, self.tools, Settings(**settings), self.view, log or Log())
        self.cancel = Cancellation()

    def turn(self, text: str = "Go.") -> loop.Outcome:
        return self.agent.turn(text, self.cancel)

    @property
    def roles(self) -> list[str]:
        return [message.role for message in self.agent.messages]

    def in_order(self) -> None:
        """Every call has its result right behind it, and nothing else is a result."""
        messages = list(self.agent.messages)
        while messages:
            message = messages.pop(0)
            assert message.role != "tool"
            for call in message.calls:
                assert messages.pop(0).result_ids == (call.id,)
        assert self.roles[0] == "system" and self.roles.count("system") == 1


@pytest.fixture
def setting(workspace):
    return lambda *script, **options: Setting(workspace, *script, **options)


# --- the loop


def test_a_plain_answer(setting) -> None:
    found = setting(says("Hel", "lo."))
    assert found.turn("Hi") == loop.Outcome(Ending.DONE)
    assert [(m.role, m.content) for m in found.agent.messages[1:]] == [("user", "Hi"), ("assistant", "Hello.")]
    assert found.view.text == "Hello." and found.view.seen == ["answered"]
    (request,) = found.target.requests
    assert request.prompt.tools == found.tools.schemas and request.prompt.thinking == "high"
    assert found.tools.workspace.root in request.prompt.system and request.cancel is found.cancel


def test_create_read_edit_verify(setting, folder) -> None:
    """The smoke test: what a model does to write a file and put it right."""
    found = setting(
        calls(("write", {"path": "a.py", "content": "print(1)\nprint(2)\n"}), text="I begin."),
        calls(("read", {"path": "a.py"})),
        calls(("edit", {"path": "a.py", "line": 2, "new": "print(40 + 2)\nprint('end')"})),
        calls(("bash", {"command": "cat a.py | tail -n 2"}), ("list", {})),
        says("Done: a.py."),
    )
    assert found.turn("Make a.py") == loop.Outcome(Ending.DONE)
    assert (folder / "a.py").read_text() == "print(1)\nprint(40 + 2)\nprint('end')\n"
    results = [m.content for m in found.agent.messages if m.role == "tool"]
    assert results[0] == "Wrote 18 bytes to a.py" and results[1] == "a.py: lines 1-2 of 2\n1 print(1)\n2 print(2)"
    assert results[2].startswith("Edited a.py lines 2-2\nLine shift: +1 for all lines behind old line 2;")
    assert results[3].endswith("exit_status=0\n<output>\nprint(40 + 2)\nprint('end')\n</output>")
    assert results[4] == f".:\n- {(folder / 'a.py').stat().st_size} a.py"
    assert found.roles == ["system", "user", *["assistant", "tool"] * 3, "assistant", "tool", "tool", "assistant"]
    assert [len(r.prompt.messages) for r in found.target.requests] == [2, 4, 6, 8, 11]
    assert found.view.text == "I begin.Done: a.py." and found.agent.answers == 5 and found.agent.calls == 5
    assert found.view.seen[:3] == ["answered", "write a.py", "Wrote 18 bytes to a.py"]
    found.in_order()


def test_lines_read_in_one_answer_are_known_in_the_next(setting, folder) -> None:
    (folder / "a").write_text("one\ntwo\n")
    edit = ("edit", {"path": "a", "line": 1, "new": "ONE"})
    found = setting(calls(("read", {"path": "a"}), edit), calls(edit), says("x"))
    found.turn()
    first, second, third = (m.content for m in found.agent.messages if m.role == "tool")
    assert "was not shown recently" in second and third.startswith("Edited a lines 1-1")


def test_thoughts_and_markup_go_back_as_they_came(setting) -> None:
    markup = "\n\n<markup>"
    found = setting(calls(("list", {}), text="So", reasoning="hm", markup=markup), says("x"), says("y"))
    found.turn()
    found.turn("More")
    message = found.target.requests[1].prompt.messages[2]
    assert (message.content, message.reasoning, message.raw_dsml) == ("So", "hm", markup)
    prompt = "".join(part.text for part in render(found.target.requests[2].prompt.messages, found.tools.schemas).parts)
    assert prompt.count(markup) == 1 and prompt.count("<tool_result>.: empty</tool_result>") == 1


def test_every_failure_is_a_result(setting, folder) -> None:
    wanted = [
        ("nosuch", {}), ("read", {"path": "../secret.txt"}), ("read", "not json"), ("read", ""),
        ("edit", {"path": "x"}), ("bash", {"command": "exit 1"}), ("", {}),
    ]  # fmt: skip
    found = setting(calls(*wanted), says("I see."))
    assert found.turn() == loop.Outcome(Ending.DONE)
    results = [m.content for m in found.agent.messages if m.role == "tool"]
    assert len(results) == len(wanted)
    assert [r.startswith("Tool error: ") for r in results] == [True, True, True, True, True, False, True]
    sent = [json.loads(call.arguments) for call in found.target.requests[1].prompt.messages[2].calls]
    assert sent[2] == {"arguments": "not json"} and sent[3] == {} and sent[1] == {"path": "../secret.txt"}
    found.in_order()


def test_denied_calls_are_told(setting, folder) -> None:
    found = setting(calls(("bash", {"command": "touch x"}), ("list", {})), says("ok"), permit=Permit({"list"}))
    found.turn()
    denied, listed = (m.content for m in found.agent.messages if m.role == "tool")
    assert denied.startswith("Tool error: permission denied: bash was not allowed beforehand") and listed == ".: empty"


def test_questions_are_asked_and_always_means_always(setting, folder) -> None:
    asked = []
    answers = iter([Answer.NO, Answer.YES, Answer.ALWAYS, Answer.YES])

    def ask(question):
        asked.append((question.tool, question.what, question.detail))
        return next(answers)

    wanted = [("write", {"path": "a", "content": f"{n}\n"}) for n in range(4)]
    more = [("edit", {"path": "a", "old": "3", "new": "4"}), ("bash", {"command": "echo\techo"})]
    found = setting(calls(*wanted, *more), says("ok"), permit=Permit(GROUP_READ, ask))
    found.turn()
    results = [m.content for m in found.agent.messages if m.role == "tool"]
    assert results[0].startswith("Tool error: permission denied: the user said no to this write call.")
    assert not any(r.startswith("Tool error") for r in results[1:])
    assert [a[:2] for a in asked] == [("write", "make a"), ("write", "make a"), ("write", "replace all 2 bytes of a"),
                                      ("bash", "run")]  # fmt: skip
    assert asked[2][2] == "@@ -1,1 +1,1 @@\n-1\n+2" and asked[3][2] == "echo\techo"
    assert (folder / "a").read_text() == "4\n"


GROUP_READ = ("read", "list", "search")


def test_ids_are_one_a_call(setting) -> None:
    wanted = calls(("list", {}), ("list", {}), ids=False)
    same = [Delta(calls=(CallDelta(n, "list", "{}", "same"),)) for n in range(2)]
    found = setting(wanted, [*same, Delta(finish="tool_calls")], says("x"))
    found.turn()
    ids = [call.id for message in found.agent.messages for call in message.calls]
    assert ids == ["call_1", "call_2", "same", "call_4"]
    found.in_order()


def test_calls_behind_a_plain_stop_are_run(setting) -> None:
    """There are servers that say so."""
    found = setting(calls(("list", {}), finish=Finish.STOP), says("x"))
    assert found.turn().ending is Ending.DONE and found.roles.count("tool") == 1


def test_too_many_calls_at_once(setting, monkeypatch) -> None:
    monkeypatch.setattr(loop, "MAX_CALLS", 3)
    found = setting(calls(*[("list", {})] * 5), says("x"))
    found.turn()
    results = [m.content for m in found.agent.messages if m.role == "tool"]
    assert results[:3] == [".: empty"] * 3
    assert results[3:] == ["Tool error: too many calls in one answer; the first 3 were run"] * 2


def test_settings_reach_the_target(setting) -> None:
    wanted = {"max_tokens": 7, "temperature": 0.5, "top_p": 0.9, "min_p": 0.1, "seed": 3}
    found = setting(says("x"), thinking="none", system="Be.", **wanted)
    found.turn()
    (request,) = found.target.requests
    assert {name: getattr(request, name) for name in wanted} == wanted
    assert request.prompt.thinking == "none" and request.prompt.system.endswith("\n\nBe.")
    assert loop.system_text("/w", "").endswith("open.")


# --- what ends a turn


def test_a_turn_limit(setting) -> None:
    found = setting(calls(("list", {})), max_turns=3)
    assert found.turn() == loop.Outcome(Ending.TURNS, "stopped after 3 answers (--max-turns)")
    assert len(found.target.requests) == 3 and found.roles[-1] == "tool"
    found.in_order()
    found.target.script = [says("Now.")]
    assert found.turn("Go on").ending is Ending.DONE
    assert setting(calls(("list", {})), max_turns=1).turn().why == "stopped after 1 answer (--max-turns)"


def test_a_length_limit_runs_no_half_call(setting, folder) -> None:
    wanted = calls(("bash", '{"command":"rm -rf a'), text="I'll", finish=Finish.LENGTH)
    found = setting(wanted, max_tokens=9)
    assert found.turn() == loop.Outcome(Ending.CUT, "the answer was cut off: at most 9 tokens (-n)")
    assert found.roles == ["system", "user", "assistant"] and not found.agent.messages[-1].calls
    assert found.agent.messages[-1].content == "I'll"


@pytest.mark.parametrize("finish, ending", [("stop", Ending.DONE), ("error", Ending.DONE), ("length", Ending.CUT),
                                            ("cancelled", Ending.INTERRUPTED)])  # fmt: skip
def test_broken_markup_is_answered_so_that_the_model_can_retry(setting, finish, ending) -> None:
    block = "<tool_calls>broken"
    broken = [Delta("Let me. "), Delta(calls=(CallDelta(0, "bash", '{"command":"x'),)), Delta(block, void=True),
              Delta(finish=finish, error="the tool call block is not closed")]  # fmt: skip
    found = setting(broken, says("Sorry."))
    assert found.turn().ending is ending
    if ending is Ending.DONE:
        texts = [(m.role, m.content) for m in found.target.requests[1].prompt.messages[2:]]
        reason = "Tool error: invalid DSML tool call: the tool call block is not closed"
        assert texts == [("assistant", f"Let me. {block}"), ("user", reason)]
        assert found.view.seen[1] == "!invalid DSML tool call: the tool call block is not closed"
    found.in_order()


def test_a_model_that_never_gets_it_right_ends_at_the_limit(setting) -> None:
    found = setting([Delta("x", void=True), Delta(finish="stop", error="no")], max_turns=4)
    assert found.turn().ending is Ending.TURNS and len(found.target.requests) == 4


def test_an_answer_that_ends_with_an_error(setting) -> None:
    found = setting(calls(("list", {}), text="So", finish="error", error="it ended for the reason 'filter'"))
    assert found.turn() == loop.Outcome(Ending.FAILED, "script: it ended for the reason 'filter'")
    assert found.roles == ["system", "user", "assistant"]
    found = setting([Delta(finish="error")])
    assert found.turn() == loop.Outcome(Ending.FAILED, "script: the answer ended with an error", taken_back=True)


@pytest.mark.parametrize("error", [TargetError("no answer"), ContextError("too long"), MemoryError()], ids=str)
def test_a_target_that_fails_takes_the_message_back(setting, error) -> None:
    found = setting(error, says("Now."))
    outcome = found.turn("Hi")
    assert outcome.ending is Ending.FAILED and outcome.taken_back and outcome.why == (str(error) or "not enough memory")
    assert found.roles == ["system"]
    assert found.turn("Hi").ending is Ending.DONE and found.roles == ["system", "user", "assistant"]


def test_what_was_said_before_a_failure_stays(setting) -> None:
    found = setting([Delta("Half"), TargetError("gone")], says("Now."))
    assert found.turn() == loop.Outcome(Ending.FAILED, "gone")
    assert [(m.role, m.content) for m in found.agent.messages[1:]] == [("user", "Go."), ("assistant", "Half")]
    found = setting(calls(("list", {})), TargetError("gone"), says("Now."))
    assert found.turn().ending is Ending.FAILED and found.roles == ["system", "user", "assistant", "tool"]
    assert found.turn("Again").ending is Ending.DONE
    found.in_order()


def test_a_stream_that_just_ends(setting) -> None:
    found = setting([Delta("Half")])
    assert found.turn().why == "the answer broke off: no finish reason came"
    assert found.agent.messages[-1].content == "Half"


def test_an_empty_answer(setting) -> None:
    found = setting(says(""), says("x"))
    assert found.turn() == loop.Outcome(Ending.DONE) and found.roles == ["system", "user"]
    found.turn()
    found.in_order()


# --- Ctrl-C


def test_ctrl_c_amid_an_answer(setting) -> None:
    def interrupted(request):
        yield Delta("Half an ")
        found.cancel.press()
        yield Delta(calls=(CallDelta(0, "bash", '{"command":"touch x"}'),))
        yield Delta(finish=Finish.CANCELLED)

    found = setting(interrupted, says("More."))
    assert found.turn() == loop.Outcome(Ending.INTERRUPTED, "interrupted")
    assert [m.content for m in found.agent.messages[1:]] == ["Go.", "Half an "] and not found.agent.messages[-1].calls
    found.cancel = Cancellation()
    assert found.turn("On").ending is Ending.DONE


def test_ctrl_c_before_the_first_word(setting) -> None:
    found = setting([Delta(finish=Finish.CANCELLED)])
    assert found.turn() == loop.Outcome(Ending.INTERRUPTED, "interrupted", taken_back=True)
    assert found.roles == ["system"]


def test_ctrl_c_amid_the_calls(setting, folder) -> None:
    """What ran has its result, what did not is told so, and the session goes on."""
    found = setting(
        calls(("bash", {"command": "touch begun; sleep 1000"}), ("write", {"path": "x", "content": ""})), says("k")
    )
    found.tools.shell.clock = lambda: found.cancel.press() or 0.0 if (folder / "begun").exists() else 0.0
    assert found.turn() == loop.Outcome(Ending.INTERRUPTED, "interrupted")
    ran, other = (m.content for m in found.agent.messages if m.role == "tool")
    assert ran.startswith("bash status=done") and "\nstopped by the user\n" in ran
    assert other == "Tool error: interrupted by the user; this call was not run"
    assert sorted(os.listdir(folder)) == ["begun"]
    found.in_order()
    found.cancel, found.tools.shell.clock = Cancellation(), lambda: 0.0
    assert found.turn("On").ending is Ending.DONE


def test_a_second_ctrl_c_strikes_anywhere_and_leaves_order(setting, monkeypatch) -> None:
    found = setting(calls(("list", {}), ("list", {})), says("k"))
    run = found.tools.run
    monkeypatch.setattr(found.tools, "run", lambda call, cancel: run(call, cancel) if call.id == "id0" else strike())

    def strike():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        found.turn()
    assert found.agent.messages[-1].content == "Tool error: interrupted; this call was not run to its end"
    found.in_order()
    assert found.turn("On").ending is Ending.DONE


def test_the_conversation_can_be_forgotten(setting, folder) -> None:
    (folder / "a").write_text("one\n")
    edit = ("edit", {"path": "a", "line": 1, "new": "x"})
    found = setting(calls(("read", {"path": "a"})), says("x"), calls(edit), says("x"))
    found.turn()
    found.agent.clear()
    assert found.roles == ["system"]
    found.turn()
    assert "requires a recent read" in found.agent.messages[-2].content, "nor does it know the lines any more"


def test_what_is_no_text_can_be_sent(setting) -> None:
    found = setting(says("x"), system="s\udcff")
    found.turn("caf\udce9")
    found.agent.messages[0].content.encode()
    assert found.agent.messages[1].content == "caf\ufffd"


# --- the transcript


def test_the_log_has_everything(setting, tmp_path, folder) -> None:
    path, ticks = tmp_path / "log.jsonl", iter(range(100))
    with Log(str(path), clock=lambda: next(ticks)) as log:
        found = setting(calls(("list", {}), text="So", reasoning="hm"), says("Done \u20ac\ud800."), log=log)
        log("session", root="r")
        found.turn("Hi")
    lines = [json.loads(line) for line in path.read_bytes().splitlines()]
    assert [line.pop("time") for line in lines] == [0, 1, 2, 3, 4, 5]
    call = {"name": "list", "arguments": "{}", "id": "id0"}
    usage = {"prompt": 10, "completion": 5, "cached": None, "reasoning": None}
    assert lines[:4] == [
        {"type": "session", "root": "r"}, {"type": "user", "text": "Hi"},
        {"type": "assistant", "text": "So", "reasoning": "hm", "calls": [call], "finish": "tool_calls", "usage": usage,
         "seconds": 0.0},
        {"type": "tool", "name": "list", "id": "id0", "result": ".: empty"},
    ]  # fmt: skip
    assert lines[4]["text"] == "Done \u20ac\ud800." and lines[5] == {"type": "end", "ending": "done"}
    assert path.stat().st_mode & 0o777 == 0o600
    with Log(str(path)) as log:
        setting(TargetError("gone"), log=log).turn("Hi")
    assert json.loads(path.read_bytes().splitlines()[-1])["why"] == "gone" and path.read_bytes().count(b"\n") == 9


def test_a_log_that_cannot_be_written(setting, tmp_path, monkeypatch) -> None:
    with pytest.raises(DataError, match="cannot write .*missing/log: No such file"):
        Log(str(tmp_path / "missing" / "log"))
    log = Log(str(tmp_path / "log"))

    def full(*_):
        raise OSError(28, "No space left on device")

    found = setting(says("x"), log=log)
    monkeypatch.setattr(os, "write", full)
    assert found.turn().ending is Ending.DONE, "the work goes on"
    assert log.failure == f"cannot write {tmp_path / 'log'}: No space left on device"
