"""The chat on the fake engine, fed through stdin (docs/ds4.md)."""

from __future__ import annotations

import os
import signal

import pytest

from ds4ref.cli.lineedit import HISTORY_ENTRIES, load_history, open_history, save_history
from ds4ref.errors import BackendError
from ds4ref.text.chat import MAX_PREFIX
from tests.cli.fake import byte_tokenizer

TOK = byte_tokenizer()


def turns(*messages: bytes, answer: bytes, tag: int) -> list[int]:
    ids = [TOK.bos]
    for message in messages:
        ids += [TOK.user, *message, TOK.assistant, tag, *answer, TOK.eos]
    return ids[:-1]  # EOS joins with the next turn


def chat(ds4, text: bytes, *flags: str):
    return ds4("-sys", "", *flags, stdin=text)


def test_turns_share_one_growing_session(ds4):
    done = chat(ds4, b"Hi\n\n  \nMore\n", "--nothink")
    assert (done.code, done.out) == (0, "Hello.\nHello.\n")
    (session,) = ds4.engine.sessions
    assert session.tokens == turns(b"Hi", b"More", answer=b"Hello.", tag=TOK.think_close)
    assert session.evaluated == len(session.tokens)  # nothing twice
    assert done.err.count("ds4: prefill: ") == 2


def test_reasoning_stays_in_the_conversation(ds4):
    ds4.answer = [*b"mull", TOK.think_close, *b"yes"]
    done = chat(ds4, b"Hi\nMore\n")
    assert done.out == "mull\nyes\nmull\nyes\n"
    (session,) = ds4.engine.sessions
    answer = [TOK.assistant, TOK.think_open, *b"mull", TOK.think_close, *b"yes"]
    assert session.tokens == [TOK.bos, TOK.user, *b"Hi", *answer, TOK.eos, TOK.user, *b"More", *answer]


def test_thinking_can_be_switched_between_turns(ds4):
    ds4.answer = [*b"a", TOK.think_close]
    done = chat(ds4, b"1\n/nothink\n2\n/think\n3\n")
    assert done.code == 0
    tags = [t for t in ds4.engine.sessions[-1].tokens if t in (TOK.think_open, TOK.think_close)]
    o, c = TOK.think_open, TOK.think_close
    assert tags == [o, c, c, c, o, c]


def test_think_max_needs_a_large_context(ds4):
    done = chat(ds4, b"/think-max\nHi\n")
    assert "ds4: warning: --think-max needs --ctx >= 393216; ctx=32768 uses normal thinking instead\n" in done.err
    assert ds4.engine.sessions[-1].tokens[1] == TOK.user


def test_think_max_prefix_comes_and_goes(ds4):
    done = chat(ds4, b"/nothink\nHi\n/think-max\nHo\n", "--ctx", "393216")
    (session,) = ds4.engine.sessions
    prefix = list(MAX_PREFIX.encode())
    assert done.code == 0
    assert session.tokens[1 : 1 + len(prefix)] == prefix
    assert session.tokens[1 + len(prefix)] == TOK.user
    chat(ds4, b"/think-max\nHi\n/nothink\nHo\n", "--ctx", "393216")
    assert ds4.engine.sessions[-1].tokens == turns(b"Hi", b"Ho", answer=b"Hello.", tag=TOK.think_open)[:12] + [
        TOK.eos, TOK.user, *b"Ho", TOK.assistant, TOK.think_close, *b"Hello."]  # fmt: skip


def test_ctx_keeps_the_conversation(ds4):
    done = chat(ds4, b"Hi\n/ctx 200\nMore\n", "--nothink")
    first, second = ds4.engine.sessions
    assert (first.ctx, second.ctx) == (32768, 200)
    assert second.tokens == turns(b"Hi", b"More", answer=b"Hello.", tag=TOK.think_close)
    assert "ds4: context 200\n" in done.err


@pytest.mark.parametrize("bad", ["", "0", "x", "-5", "1.5", "99999999999"])
def test_a_bad_ctx_does_not_end_the_chat(ds4, bad):
    done = chat(ds4, f"Hi\n/ctx {bad}\nMore\n".encode(), "--nothink")
    assert (done.code, done.out) == (0, "Hello.\nHello.\n")
    assert f"ds4: /ctx: an integer >= 1 is needed, not {bad or 'nothing'}\n" in done.err


def test_ctx_smaller_than_the_conversation(ds4):
    done = chat(ds4, b"Hi\n/ctx 5\nMore\n", "--nothink")
    assert (done.code, done.out) == (0, "Hello.\nHello.\n")
    assert "ds4: /ctx: the conversation has 13 tokens already; choose more than that\n" in done.err


def test_a_full_context_is_told_and_the_message_taken_back(ds4):
    done = chat(ds4, b"Hi\n" + b"x" * 50 + b"\n/ctx 100\nok\n", "--nothink", "--ctx", "40")
    assert done.out == "Hello.\nHello.\n"
    assert "ds4: the prompt has 66 tokens, a context of 40 takes at most 38; /ctx N makes room\n" in done.err
    assert done.code == 0  # the last turn went well
    assert chat(ds4, b"x" * 50 + b"\n", "--ctx", "40").code == 1


def test_read(ds4, tmp_path):
    (tmp_path / "a b").write_bytes(b"two\nlines\n")
    done = chat(ds4, f"/read {tmp_path}/a b\n/read {tmp_path}/none\n/read\n".encode(), "--nothink")
    assert (done.code, done.out) == (0, "Hello.\n")
    tokens = ds4.engine.sessions[-1].tokens
    assert tokens[2:12] == list(b"two\nlines\n")
    assert f"ds4: /read: cannot read file {tmp_path}/none: No such file or directory\n" in done.err
    assert "ds4: /read: a file name is needed\n" in done.err


def test_help_unknown_and_quit(ds4):
    done = chat(ds4, b"/help\n/foo bar\n/quit\nHi\n")
    assert (done.code, done.out) == (0, "")
    assert "/ctx N " in done.err
    assert "ds4: unknown command: /foo (/help lists them)\n" in done.err
    assert chat(ds4, b"/exit\nHi\n").out == ""


def hooked(ds4, **hooks):
    def setup(engine):
        make = type(engine).session

        def session(ctx):
            made = make(engine, ctx)
            for name, hook in hooks.items():
                setattr(made, name, hook)
            return made

        engine.session = session

    ds4.setup = setup


def once(condition):
    """Press Ctrl-C the first time ``condition`` holds."""
    pressed = []

    def hook(value):
        if condition(value) and not pressed:
            pressed.append(value)
            os.kill(os.getpid(), signal.SIGINT)

    return hook


def test_ctrl_c_keeps_a_partial_answer(ds4):
    hooked(ds4, before_eval=once(lambda n: n == 3))
    done = chat(ds4, b"Hi\nMore\n", "--nothink")
    assert (done.code, done.out) == (0, "Hel\nHello.\n")
    tokens = ds4.engine.sessions[-1].tokens
    assert tokens[:9] == [TOK.bos, TOK.user, *b"Hi", TOK.assistant, TOK.think_close, *b"Hel"]
    assert tokens[9:11] == [TOK.eos, TOK.user]


def test_ctrl_c_in_prefill_takes_the_turn_back(ds4):
    hooked(ds4, on_chunk=once(lambda at: at >= 16))
    done = chat(ds4, b"x" * 30 + b"\nMore\n", "--nothink")
    assert (done.code, done.out) == (0, "Hello.\n")
    assert "ds4: stopped before the first token; your message is taken back\n" in done.err
    assert ds4.engine.sessions[-1].tokens == turns(b"More", answer=b"Hello.", tag=TOK.think_close)
    hooked(ds4, on_chunk=once(lambda at: at >= 16))
    chat(ds4, b"x" * 30 + b"\n", "--nothink")
    assert not ds4.engine.sessions[-1].valid


def test_second_ctrl_c_does_not_wait(ds4):
    def twice(n):
        if n == 3 and not ds4.engine.__dict__.setdefault("pressed", 0):
            ds4.engine.pressed = 1
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)

    hooked(ds4, before_eval=twice)
    done = chat(ds4, b"Hi\nMore\n", "--nothink")
    assert (done.code, done.out) == (0, "Hel\nHello.\n")


def test_an_engine_failure_ends_the_turn_not_the_chat(ds4):
    failed = []

    def fail(n):
        if n == 3 and not failed:
            failed.append(n)
            raise BackendError("the device fell off")

    hooked(ds4, before_eval=fail)
    done = chat(ds4, b"Hi\nMore\n", "--nothink")
    assert done.out == "Hel\nHello.\n"
    assert "ds4: the device fell off\n" in done.err
    assert done.code == 0
    failed.clear()
    assert chat(ds4, b"Hi\n", "--nothink").code == 1


def test_input_that_is_not_utf8_reaches_the_model_as_it_is(ds4):
    chat(ds4, b"a\xffb\n", "--nothink")
    assert ds4.engine.sessions[-1].tokens[2:5] == list(b"a\xffb")


# --- history


def test_history_keeps_the_newest_entries(tmp_path):
    path = tmp_path / "history"
    save_history(path, [f"entry {i}" for i in range(600)])
    entries = load_history(path)
    assert len(path.read_text().splitlines()) == len(entries) == HISTORY_ENTRIES == 512
    assert (entries[0], entries[-1]) == ("entry 88", "entry 599")
    assert path.stat().st_mode & 0o777 == 0o600


def test_history_entries_survive_line_breaks(tmp_path):
    entries = ["a\nb", "c\\nd", "\\", "e\r", "plain", "\\\n\\"]
    save_history(tmp_path / "h", entries)
    assert load_history(tmp_path / "h") == entries
    assert len((tmp_path / "h").read_text().splitlines()) == len(entries)


def test_history_of_the_line_editor(tmp_path):
    path = tmp_path / "h"
    history = open_history(path)
    history.append_string("first")
    history.append_string("second\nline")
    assert path.read_text() == "first\nsecond\\nline\n"
    assert list(open_history(path).load_history_strings()) == ["second\nline", "first"]


def test_no_history_is_no_failure(tmp_path):
    assert load_history(tmp_path / "none") == []
    save_history(tmp_path / "none" / "h", ["x"])
    open_history(tmp_path / "none" / "h").append_string("x")
