"""Thinking asked for and not seen, or seen and not asked for: said wherever a score is shown."""

from __future__ import annotations

import json

import pytest

from ds4ref.eval.cli import main
from ds4ref.reports.cli import main as report
from ds4ref.runs import thinking
from ds4ref.targets import Delta, Finish
from ds4ref.targets.dialects import likely
from tests.agent.scripted import Endpoint

DONE = {"status": "done", "output": "Answer: 4", "finish": "stop", "tokens": 4}
SAMPLES = {
    "short and whole": (False, {}),
    "reasoning apart": (True, {"reasoning": "two and two"}),
    "reasoning apart, answer cut off": (True, {"reasoning": "two", "output": "", "finish": "length"}),
    "blank reasoning": (False, {"reasoning": "\n\n"}),
    "counted, not shown": (True, {"reasoning_tokens": 300, "tokens": 304}),
    "empty tags counted": (None, {"reasoning_tokens": thinking.FEW}),
    "one more": (True, {"reasoning_tokens": thinking.FEW + 1}),
    "in tags": (True, {"output": "<think>two and two</think>Answer: 4", "tokens": 12}),
    "opened by the template": (True, {"output": "two and two\n</think>\n\nAnswer: 4", "tokens": 12}),
    "empty tags": (False, {"output": "<think>\n\n</think>\n\nAnswer: 4"}),
    "tags of others": (True, {"output": "[THINK]two[/THINK]Answer: 4"}),
    "a channel": (True, {"output": "<|channel|>analysis<|message|>two and two"}),
    "not closed": (True, {"output": "<think>two and", "finish": "length"}),
    "a tag that the answer is about": (False, {"output": "HTML has no <think>, but close with </reasoning>: 4"}),
    "cut off before any tag": (None, {"output": "two and", "finish": "length"}),
    "empty": (None, {"output": " "}),
    "failed": (None, {"status": "failed"}),
    "more tokens than the text can hold": (None, {"tokens": thinking.SLACK + 5}),
    "as many": (False, {"tokens": thinking.SLACK + 4}),
}


@pytest.mark.parametrize("name", SAMPLES)
def test_what_an_answer_shows(name):
    shows, fields = SAMPLES[name]
    assert thinking.seen({**DONE, **fields}) is shows


HTTP = {"kind": "http"}
PROBED = {"dialect": "probe", "likely": ["openai", "deepseek"]}
NONE = "thinking: asked for, but seen in none of 2 answers"
WHY = "hides its thinking, or its model does not think"
NOTES = {
    "never": ("high", (False, False), PROBED, f"{NONE}. The server ignores how it was asked (--dialect probe), {WHY}. "
              "Try --dialect openai (or deepseek)"),
    "older logs": ("high", (False, False), {}, f"{NONE}. The server ignores how it was asked, {WHY}. "
                   "Try --dialect vllm (or openai, deepseek)"),
    "in its own way": ("high", (False, False), {"dialect": "vllm", "likely": []}, f"{NONE}. The server was asked in "
                       f"its own way (--dialect vllm): it {WHY}"),
    "not over HTTP": ("max", (False, False), None, NONE),
    "in some": ("high", (True, False, None), PROBED,
                "thinking: asked for, and seen in 1 of 2 answers (1 more cannot show it)"),
    "in all": ("high", (True, None), PROBED, ""),
    "nobody knows": ("high", (None, None), PROBED, ""),
    "off, and never": ("none", (False, None), PROBED, ""),
    "off, but seen": ("none", (True, False), PROBED, "thinking: switched off, but seen in 1 of 2 answers. The server "
                      "ignores how it was asked (--dialect probe), or its model always thinks. "
                      "Try --dialect openai (or deepseek)"),
}  # fmt: skip


@pytest.mark.parametrize("name", NOTES)
def test_what_is_said(name):
    """A question of its own mode counts for that mode, and a failed answer for nothing."""
    mode, shown, server, text = NOTES[name]
    facts = {"settings": {"think": mode} if mode else {}, "target": {"kind": "local"} if server is None else HTTP,
             "server": server}  # fmt: skip
    rows = [{"status": "done", "thought": thought} for thought in shown]
    rows += [{"status": "failed", "thought": False}, {"status": "done", "thought": False, "think": "none"}]
    rows = rows[:-1] if mode == "none" else rows
    assert thinking.notes(rows, facts) == ([text] if text else [])


@pytest.mark.parametrize(
    ("current", "owner", "dialects"),
    [("probe", "", "vllm openai"), ("probe", "llamacpp", "llama.cpp openai"), ("probe", "library", "openai vllm"),
     ("plain", "me", "vllm openai deepseek"), ("llama.cpp", "", "openai deepseek"), ("openai", "VLLM", "vllm deepseek"),
     ("vllm", "llamacpp", ""), ("probe", "ds4ref", "")],
)  # fmt: skip
def test_the_dialects_that_are_named(current, owner, dialects):
    assert likely(current, owner) == dialects.split()


# --- from a server to every page


def as_vllm(body: dict) -> list[Delta]:
    """Think if chat_template_kwargs say so, whatever else is in the request."""
    thinks = body.get("chat_template_kwargs", {}).get("thinking")
    return [Delta(reasoning="two and two" * bool(thinks)), Delta("Answer: A"), Delta(finish=Finish.STOP)]


@pytest.fixture
def server():
    with Endpoint(as_vllm, model={"id": "m", "owned_by": "vllm"}) as found:
        yield found.url


def test_an_ignored_wish_is_said_wherever_the_score_is(server, tmp_path, capsys, private_data):
    """Console, log, JSON, view, replay, compare, the store and reports; --dialect mends it."""
    path, other = str(tmp_path / "a.jsonl"), str(tmp_path / "b.jsonl")
    run = ["--target", server, "--questions", "2", "--plain"]

    def said(call, *argv: str) -> str:
        assert call(list(argv)) in (0, 1, 4)
        out = capsys.readouterr()
        return " ".join((out.out + out.err).split())

    note = "asked for, but seen in none of 2 answers"
    whole = f"thinking: {note}. The server ignores how it was asked (--dialect probe), {WHY}. " \
            "Try --dialect vllm (or openai)"  # fmt: skip
    assert whole in said(main, *run, "-o", path)
    assert json.loads((tmp_path / "a.jsonl").read_text().splitlines()[-1]) == {"note": whole}
    assert "2 of them done" in said(main, "--resume", path, "--plain"), "a note is no sample"
    assert (tmp_path / "a.jsonl").read_text().count('{"note"') == 1
    for argv in (["view", path], ["--replay", path, "--speed", "9999", "--plain"], ["view", path, "--json"],
                 ["--resume", path, "--json"], ["compare", path, path]):  # fmt: skip
        assert note in said(main, *argv), argv
    assert "thinking" not in said(main, *run, "-o", other, "--dialect", "vllm").replace("its thinking itself", "")
    assert note in said(report, "show", "1") and note not in said(report, "show", "2")
    assert note in said(report, "compare", "1", "2")
    said(report, "build", path, other, "-o", str(tmp_path / "r.html"))
    assert note in (tmp_path / "r.html").read_text()
