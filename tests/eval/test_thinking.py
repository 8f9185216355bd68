"""Thinking asked for and not seen, or seen and not asked for: said wherever a score is shown."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from ds4ref.eval.cli import main
from ds4ref.eval.plan import Settings
from ds4ref.eval.runner import ask
from ds4ref.reports.cli import main as report
from ds4ref.runs import thinking
from ds4ref.targets.dialects import likely

from .answering import Answer, Scripted
from .scripted import integer

DONE = {"status": "done", "output": "Answer: 4", "finish": "stop", "tokens": 4}
SAMPLES = {
    "short and whole": (False, {}),
    "reasoning apart": (True, {"reasoning": "two and two"}),
    "reasoning apart, answer cut off": (True, {"reasoning": "two", "output": "", "finish": "length"}),
    "blank reasoning": (False, {"reasoning": "\n\n"}),
    "counted, not shown": (True, {"reasoning_tokens": 300, "tokens": 304}),
    "counted as nothing": (False, {"reasoning_tokens": 0}),
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
    "tokens not counted": (False, {"tokens": None}),
}


@pytest.mark.parametrize("name", SAMPLES)
def test_what_an_answer_shows(name):
    shows, fields = SAMPLES[name]
    assert thinking.seen({**DONE, **fields}) is shows


HTTP = {"kind": "http"}
NONE = "thinking: asked for, but seen in none of 2 answers"
TRY = "Try --dialect openai (or deepseek)"
NOTES = {
    "never": ("high", (False, False), HTTP, f"{NONE}. The server ignores how it was asked (--dialect probe), hides its "
              f"thinking, or its model does not think. {TRY}"),
    "not over HTTP": ("max", (False, False), {"kind": "local"}, NONE),
    "in some": ("high", (True, False, None), HTTP,
                "thinking: asked for, and seen in 1 of 2 answers (1 more cannot show it)"),
    "in all": ("high", (True, None), HTTP, ""),
    "nobody knows": ("high", (None, None), HTTP, ""),
    "rows of older versions": ("high", (), HTTP, ""),
    "off, and never": ("none", (False, None), HTTP, ""),
    "off, but seen": ("none", (True, False), HTTP, "thinking: switched off, but seen in 1 of 2 answers. The server "
                      f"ignores how it was asked (--dialect probe), or its model always thinks. {TRY}"),
    "judged, without settings": (None, (False, True), {"kind": "judged"}, ""),
}  # fmt: skip


@pytest.mark.parametrize("name", NOTES)
def test_what_is_said(name):
    mode, shown, target, text = NOTES[name]
    facts = {"settings": {"think": mode} if mode else {}, "target": target,
             "server": {"dialect": "probe", "likely": ["openai", "deepseek"]}}  # fmt: skip
    rows = [{"status": "done", "thought": thought} for thought in shown] or [{"status": "done"}]
    rows.append({"status": "failed", "thought": False})
    assert thinking.notes(rows, facts) == ([text] if text else [])


@pytest.mark.parametrize(
    ("server", "end"),
    [
        ({}, "The server ignores how it was asked, hides its thinking, or its model does not think. "
             "Try --dialect vllm (or openai, deepseek)"),
        ({"server": {"dialect": "vllm", "likely": []}},
         "The server was asked in its own way (--dialect vllm): it hides its thinking, or its model does not think"),
    ],
)  # fmt: skip
def test_older_logs_and_servers_asked_in_their_own_way(server, end):
    facts = {"settings": {"think": "high"}, "target": HTTP, **server}
    rows = [{"status": "done", "thought": False}] * 2
    assert thinking.notes(rows, facts) == [f"{NONE}. {end}"]


def test_a_question_of_its_own_mode_counts_for_that_mode():
    rows = [{"status": "done", "thought": False, "think": "none"}, {"status": "done", "thought": True}]
    assert thinking.notes(rows, {"settings": {"think": "high"}}) == []


@pytest.mark.parametrize(
    ("current", "owner", "dialects"),
    [("probe", "", "vllm openai"), ("probe", "vllm", "vllm openai"), ("probe", "llamacpp", "llama.cpp openai"),
     ("probe", "sglang", "vllm openai"), ("probe", "library", "openai vllm"), ("plain", "me", "vllm openai deepseek"),
     ("llama.cpp", "", "openai deepseek"), ("openai", "VLLM", "vllm deepseek"), ("vllm", "vllm", ""),
     ("vllm", "llamacpp", ""), ("probe", "ds4ref", "")],
)  # fmt: skip
def test_the_dialects_that_are_named(current, owner, dialects):
    assert likely(current, owner) == dialects.split()


def test_thinking_that_was_not_there_did_not_end():
    for reasoning, close in (("two and two", "natural"), ("", "")):
        sample = ask(
            Scripted(lambda request, r=reasoning: Answer("Answer: 4", r)), integer(4), 1, Settings(tokens=2000)
        )
        assert (sample.close, sample.grade.outcome) == (close, "right")


# --- from a server to every page


class Server(BaseHTTPRequestHandler):
    """Think as vLLM does: if chat_template_kwargs say so, whatever else is in the request; /always: in any case."""

    def reply(self, kind: str, data: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self) -> None:
        self.reply("application/json", b'{"data": [{"id": "m", "owned_by": "vllm"}]}')

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        thinks = body.get("chat_template_kwargs", {}).get("thinking") or "always" in self.path
        deltas = [*([{"reasoning": "two and two"}] if thinks else []), {"content": "Answer: A"}, {}]
        events = [{"choices": [{"index": 0, "delta": delta, "finish_reason": None if delta else "stop"}]}
                  for delta in deltas]  # fmt: skip
        self.reply("text/event-stream", b"".join(f"data: {json.dumps(event)}\n\n".encode() for event in events))

    def log_message(self, *args: object) -> None:
        """Say nothing."""


@pytest.fixture
def server():
    with ThreadingHTTPServer(("127.0.0.1", 0), Server) as found:
        threading.Thread(target=found.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{found.server_port}"
        found.shutdown()


def test_an_ignored_wish_is_said_wherever_the_score_is(server, tmp_path, capsys, private_data):
    """Console, log, JSON, view, replay, regrade's log, compare, the store and reports; --dialect mends it."""
    path, other = str(tmp_path / "a.jsonl"), str(tmp_path / "b.jsonl")
    run = ["--target", f"{server}/v1", "--questions", "2", "--plain"]

    def said(call, *argv: str) -> str:
        assert call(list(argv)) in (0, 1, 4)
        out = capsys.readouterr()
        return " ".join((out.out + out.err).split())

    note = "asked for, but seen in none of 2 answers"
    whole = f"thinking: {note}. The server ignores how it was asked (--dialect probe), hides its thinking, or its " \
            "model does not think. Try --dialect vllm (or openai)"  # fmt: skip
    assert whole in said(main, *run, "-o", path)
    last = (tmp_path / "a.jsonl").read_text().splitlines()[-1]
    assert json.loads(last) == {"note": whole}
    assert "2 of them done" in said(main, "--resume", path, "--plain"), "a note is no sample"
    assert (tmp_path / "a.jsonl").read_text().count('{"note"') == 1
    for argv in (["view", path], ["--replay", path, "--speed", "9999", "--plain"], ["view", path, "--json"],
                 ["--resume", path, "--json"], ["compare", path, path]):  # fmt: skip
        assert note in said(main, *argv), argv
    assert "thinking" not in said(main, *run, "-o", other, "--dialect", "vllm").replace("its thinking itself", "")
    said(main, "regrade", path, "-o", str(tmp_path / "c.jsonl"))
    assert note in said(main, "view", str(tmp_path / "c.jsonl"))
    assert note in said(report, "show", "1") and note not in said(report, "show", "2")
    assert note in said(report, "compare", "1", "2")
    said(report, "build", path, other, "-o", str(tmp_path / "r.html"))
    for name in ("r.html", "r.md"):
        assert (tmp_path / name).read_text().count(note) >= 1, name


def test_thinking_that_was_switched_off_and_came(server, capsys):
    target = ["--target", f"{server}/always/v1", "--questions", "2", "--no-store", "--json", "--nothink"]
    assert main(target) == 0
    (note,) = json.loads(capsys.readouterr().out)["notes"]
    assert note.startswith("thinking: switched off, but seen in 2 of 2 answers.") and "--dialect vllm" in note
