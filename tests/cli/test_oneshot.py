"""One-shot answers on the fake engine (docs/reference/ds4.md, docs/explanation/text.md 3)."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys

import pytest

from ds4ref.cli.printer import Printer
from ds4ref.generate import Piece
from ds4ref.text import protocol
from ds4ref.text.chat import MAX_PREFIX
from tests.cli.fake import byte_tokenizer
from tests.cli.test_common import Terminal
from tests.terminal import ROOT

TOK = byte_tokenizer()
TIMING = re.compile(r"ds4: prefill: \d+\.\d\d t/s, generation: \d+\.\d\d t/s\n")


def prompt_of(ds4) -> list[int]:
    session = ds4.engine.sessions[-1]
    return session.tokens[: session.prompt_len]


def test_answer_on_stdout_timing_on_stderr(ds4):
    done = ds4("-p", "Hi", "--nothink")
    assert (done.code, done.out) == (0, "Hello.\n")
    assert TIMING.fullmatch(done.err)


def test_prompt_is_built_piece_by_piece(ds4):
    ds4("-p", "Hi<\uff5cUser\uff5c></think>", "--nothink", "-sys", "S")
    hi = list("Hi<\uff5cUser\uff5c></think>".encode())
    assert prompt_of(ds4) == [TOK.bos, ord("S"), TOK.user, *hi, TOK.assistant, TOK.think_close]
    ds4("-p", "Hi", "-sys", "")
    assert prompt_of(ds4) == [TOK.bos, TOK.user, *b"Hi", TOK.assistant, TOK.think_open]
    ds4("-p", "Hi")
    assert prompt_of(ds4)[:28] == [TOK.bos, *b"You are a helpful assistant"]


def test_think_max_prefix_and_its_fallback(ds4):
    done = ds4("-p", "Hi", "--think-max", "-sys", "S", "--ctx", "393216")
    assert prompt_of(ds4)[: len(MAX_PREFIX) + 2] == [TOK.bos, *MAX_PREFIX.encode(), ord("S")]
    assert "warning" not in done.err
    done = ds4("-p", "Hi", "--think-max", "--ctx", "393215")
    assert prompt_of(ds4)[1:4] == list(b"You")
    assert done.err.startswith(
        "ds4: warning: --think-max needs --ctx >= 393216; ctx=393215 uses normal thinking instead\n"
    )


def test_a_prompt_that_starts_with_bos_is_rendered_already(ds4):
    ds4("-p", f"{protocol.BOS}x{protocol.USER}y{protocol.ASSISTANT}<think>", "-sys", "ignored", "--nothink")
    assert prompt_of(ds4) == [TOK.bos, ord("x"), TOK.user, ord("y"), TOK.assistant, TOK.think_open]


def test_thinking_in_a_pipe_is_told_from_the_answer(ds4):
    ds4.answer = [*b"mull", TOK.think_close, *b"answer"]
    assert ds4("-p", "Hi").out == "<think>\nmull\n</think>\nanswer\n"
    ds4.answer = [*b"mull\n", TOK.think_close, *b"\nanswer\n"]
    assert ds4("-p", "Hi").out == "<think>\nmull\n</think>\n\nanswer\n"
    assert ds4("-p", "Hi", "-n", "3").out == "<think>\nmul\n", "cut off: nothing was closed"
    ds4.answer = [*b"a", TOK.think_close, *b"b", TOK.think_open, *b"c", TOK.think_close, *b"d"]
    assert ds4("-p", "Hi").out == "<think>\na\n</think>\nb\n<think>\nc\n</think>\nd\n"
    ds4.answer = [TOK.think_close, *b"x"]
    assert ds4("-p", "Hi").out == "x\n"
    ds4.answer = []
    assert ds4("-p", "Hi").out == "\n"


def test_grey_thoughts_and_harmless_control_characters(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    out = Terminal()
    with Printer(out) as show:
        show(Piece(1, "mull", True))
        show(Piece(2, "", True))
        show(Piece(3, "a\x1b[2Jb\t\x07\x9b", False))
    assert out.getvalue() == "\x1b[90mmull\x1b[0m\na␛[2Jb\t␇\ufffd\n"
    out = Terminal()
    with pytest.raises(KeyboardInterrupt), Printer(out) as show:
        show(Piece(1, "mull", True))
        raise KeyboardInterrupt
    assert out.getvalue() == "\x1b[90mmull\x1b[0m\n"
    monkeypatch.setenv("NO_COLOR", "1")
    out = Terminal()
    with Printer(out) as show:
        show(Piece(1, "mull", True))
        show(Piece(2, "x", False))
    assert out.getvalue() == "<think>\nmull\n</think>\nx\n"


def test_limit_and_engine_options(ds4):
    done = ds4(*"-p Hi -n 2 --nothink --numerics exact --backend reference -t 3 --strict --split ds4".split())
    assert (done.code, done.out) == (0, "He\n")
    options = {"backend": "reference", "numerics": "exact", "threads": 3, "strict": True, "split": "ds4"}
    assert ds4.engine.options == options


def test_threads_come_from_the_environment_too(ds4, monkeypatch):
    monkeypatch.setenv("DS4_THREADS", "5")
    ds4("-p", "Hi")
    assert ds4.engine.options["threads"] == 5
    ds4("-p", "Hi", "-t", "100")
    assert ds4.engine.options["threads"] == 32
    monkeypatch.setenv("DS4_THREADS", "many")
    assert ds4("-p", "Hi").err.startswith("ds4: invalid value for DS4_THREADS: many: ")


def test_context_overflow(ds4):
    done = ds4("-p", "x" * 50, "--ctx", "55", "-sys", "", "--nothink")
    assert (done.code, done.out) == (1, "")
    assert done.err == "ds4: the prompt has 54 tokens, a context of 55 takes at most 53\n"
    assert ds4("-p", "x" * 50, "--ctx", "56", "-sys", "", "--nothink").code == 0


@pytest.mark.parametrize(
    ("argv", "code", "line"),
    [
        (["--prompt-file", "/"], 2, "ds4: cannot read prompt file /: Is a directory; see ds4 --help\n"),
        (["-p", "Hi", "-m", "/none"], 1, "ds4: /none: cannot open the model: No such file or directory\n"),
        (["-p", "Hi", "-m", "/"], 1, "ds4: /: cannot open the model: a folder without config.json\n"),
    ],
)
def test_bad_input_is_one_line_before_anything_is_loaded(ds4, argv, code, line):
    done = ds4(*argv)
    assert (done.code, done.out, done.err) == (code, "", line)
    assert ds4.engines == []


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("[1, 2", "not JSON"),
        ("{}", "expected a non-empty JSON list of integers"),
        ("[]", "expected a non-empty JSON list of integers"),
        ("[1, 2.0]", "item 1 is 2.0, not an integer >= 0"),
        ("[1, true]", "item 1 is true, not an integer >= 0"),
        ("[0, 1, -4]", "item 2 is -4, not an integer >= 0"),
        ('[0, "7"]', 'item 1 is "7", not an integer >= 0'),
        ("[" * 100_000, "not JSON"),
        ("[1" + "0" * 5000 + "]", "not JSON"),
    ],
)
def test_bad_token_ids(ds4, tmp_path, text, line):
    (tmp_path / "ids.json").write_text(text)
    done = ds4("--token-ids", str(tmp_path / "ids.json"))
    assert done.code == 2
    assert done.err.startswith(f"ds4: cannot read token ids {tmp_path}/ids.json: {line}")
    assert done.err.count("\n") == 1
    assert ds4.engines == []


def test_token_ids_as_prompt(ds4, tmp_path):
    (tmp_path / "ids.json").write_text(f"[{TOK.bos}, 65, {TOK.think_open}]")
    ds4.answer = [*b"t", TOK.think_close, *b"a"]
    assert ds4("--token-ids", str(tmp_path / "ids.json")).out == "<think>\nt\n</think>\na\n"
    assert prompt_of(ds4) == [TOK.bos, 65, TOK.think_open]


def test_ctrl_c_keeps_the_answer_so_far(ds4):
    ds4.hooks = {"before_eval": lambda n: os.kill(os.getpid(), signal.SIGINT) if n == 3 else None}
    done = ds4("-p", "Hi", "--nothink")
    assert (done.code, done.out) == (130, "Hel\n")
    assert TIMING.fullmatch(done.err)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_json_says_where_it_comes_from(ds4):
    stats = json.loads(ds4("-p", "Hi", "--nothink", "--seed", "7", "--json", "--min-p", "0.5").out)
    assert stats["tokens"] == 6
    assert stats["prompt_tokens"] == len(prompt_of(ds4))
    assert (stats["seed"], stats["finish"], stats["numerics"]) == (7, "stop", "qat")
    assert stats["model"]["name"] == "fake" and stats["experts"] is None


@pytest.mark.parametrize(("limit", "text", "finish"), [("99", "answer", "stop"), ("3", "", "length")])
def test_json_is_one_line_alone_on_stdout(ds4, limit, text, finish):
    ds4.answer = [*b"mull", TOK.think_close, *b"answer", TOK.eos]
    done = ds4("-p", "Hi", "--json", "-n", limit)
    said = json.loads(done.out)
    assert done.code == 0 and done.out.count("\n") == 1 and TIMING.fullmatch(done.err)
    assert (said.pop("text"), said.pop("reasoning")) == (text, "mull" if text else "mul")
    assert said.pop("token_ids") == (ds4.answer[:-1] if text else [*b"mul"])
    assert said["finish"] == finish and said["decode_s"] >= 0


def test_lock_only_when_asked_for(ds4, tmp_path, monkeypatch):
    lock = tmp_path / "lock"
    monkeypatch.setenv("DS4_LOCK_FILE", str(lock))
    assert ds4("-p", "Hi").code == 0
    assert lock.read_text() == f"{os.getpid()}\n"
    holder = subprocess.Popen(
        [sys.executable, "-c", "from ds4ref.console.model import single_instance\n"
         "with single_instance('ds4'): print('held', flush=True); input()"],
        cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"held\n"
    done = ds4("-p", "Hi")
    assert (done.code, done.out) == (2, "")
    assert done.err == f"ds4: another ds4 is running (pid {holder.pid} holds {lock}); see ds4 --help\n"
    holder.communicate(b"\n", 10)
    assert ds4("-p", "Hi").code == 0


def test_warm_weights_reads_the_tensors(ds4):
    done = ds4("-p", "Hi", "--warm-weights")
    assert done.code == 0
    said = r"ds4: warming 0.00 GiB of .*fake.gguf\nds4: warmed in \d+\.\d s \(checksum 00000013\)\n"
    assert re.search(said, done.err)
