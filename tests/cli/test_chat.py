"""The chat on the fake engine, fed through stdin (docs/reference/ds4.md)."""

from __future__ import annotations

import os
import re
import signal

import pytest

from ds4ref.cli import lineedit
from ds4ref.cli.chat import HELP, Chat
from ds4ref.cli.lineedit import open_history
from ds4ref.errors import BackendError
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
    assert done.out == 2 * "<think>\nmull\n</think>\nyes\n"
    (session,) = ds4.engine.sessions
    answer = [TOK.assistant, TOK.think_open, *b"mull", TOK.think_close, *b"yes"]
    assert session.tokens == [TOK.bos, TOK.user, *b"Hi", *answer, TOK.eos, TOK.user, *b"More", *answer]


def test_ctx_keeps_the_conversation(ds4):
    done = chat(ds4, b"Hi\n/ctx 200\nMore\n", "--nothink")
    first, second = ds4.engine.sessions
    assert (first.ctx, second.ctx) == (32768, 200)
    assert second.tokens == turns(b"Hi", b"More", answer=b"Hello.", tag=TOK.think_close)
    assert "ds4: context 200\n" in done.err


def test_think_max_follows_the_context(ds4):
    """It needs a large one, and becomes "high" in a smaller one."""
    small, large = ("--ctx", "200"), ("--ctx", "500000")
    chat(ds4, b"Hi\n", "--think-max", *large)
    wanted = ds4.engine.sessions[-1].tokens
    chat(ds4, b"Hi\n", "--think-max", *small)
    assert len(ds4.engine.sessions[-1].tokens) < len(wanted)
    chat(ds4, b"/ctx 500000\nHi\n", "--think-max", *small)
    assert ds4.engine.sessions[-1].tokens == wanted


@pytest.mark.parametrize("bad", ["", "0", "x", "-5", "1.5", "99999999999"])
def test_a_bad_ctx_does_not_end_the_chat(ds4, bad):
    done = chat(ds4, f"Hi\n/ctx {bad}\nMore\n".encode(), "--nothink")
    assert (done.code, done.out) == (0, "Hello.\nHello.\n")
    assert f"ds4: /ctx: expected an integer >= 1, not {bad or 'nothing'}\n" in done.err


def test_read(ds4, tmp_path):
    (tmp_path / "a b").write_bytes(b"two\nlines\n")
    done = chat(ds4, f"/read {tmp_path}/a b\n/read {tmp_path}/none\n/read\n".encode(), "--nothink")
    assert (done.code, done.out) == (0, "Hello.\n")
    tokens = ds4.engine.sessions[-1].tokens
    assert tokens[2:12] == list(b"two\nlines\n")
    assert f"ds4: /read: cannot read file {tmp_path}/none: No such file or directory\n" in done.err
    assert "ds4: /read: give a file name\n" in done.err


def test_help_unknown_and_quit(ds4):
    done = chat(ds4, b"/help\n/foo bar\n/quit\nHi\n")
    assert (done.code, done.out) == (0, "")
    assert "/ctx N " in done.err
    assert "ds4: unknown command: /foo (/help lists them)\n" in done.err
    assert chat(ds4, b"/exit\nHi\n").out == ""


def once(condition):
    """Press Ctrl-C the first time ``condition`` holds."""
    pressed = []

    def hook(value):
        if condition(value) and not pressed:
            pressed.append(value)
            os.kill(os.getpid(), signal.SIGINT)

    return hook


def test_ctrl_c_keeps_a_partial_answer(ds4):
    ds4.hooks = {"before_eval": once(lambda n: n == 3)}
    done = chat(ds4, b"Hi\nMore\n", "--nothink")
    assert (done.code, done.out) == (0, "Hel\nHello.\n")
    tokens = ds4.engine.sessions[-1].tokens
    assert tokens[:9] == [TOK.bos, TOK.user, *b"Hi", TOK.assistant, TOK.think_close, *b"Hel"]
    assert tokens[9:11] == [TOK.eos, TOK.user]


def test_ctrl_c_in_prefill_takes_the_turn_back(ds4):
    ds4.hooks = {"on_chunk": once(lambda at: at >= 16)}
    done = chat(ds4, b"x" * 30 + b"\nMore\n", "--nothink")
    assert (done.code, done.out) == (0, "Hello.\n")
    assert "ds4: stopped before the first token; your message was removed\n" in done.err
    assert ds4.engine.sessions[-1].tokens == turns(b"More", answer=b"Hello.", tag=TOK.think_close)
    ds4.hooks = {"on_chunk": once(lambda at: at >= 16)}
    chat(ds4, b"x" * 30 + b"\n", "--nothink")
    assert not ds4.engine.sessions[-1].valid


def test_second_ctrl_c_does_not_wait(ds4):
    def twice(n):
        if n == 3 and not ds4.engine.__dict__.setdefault("pressed", 0):
            ds4.engine.pressed = 1
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)

    ds4.hooks = {"before_eval": twice}
    done = chat(ds4, b"Hi\nMore\n", "--nothink")
    assert (done.code, done.out) == (0, "Hel\nHello.\n")


def test_an_engine_failure_ends_the_turn_not_the_chat(ds4):
    failed = []

    def fail(n):
        if n == 3 and not failed:
            failed.append(n)
            raise BackendError("the device fell off")

    ds4.hooks = {"before_eval": fail}
    done = chat(ds4, b"Hi\nMore\n", "--nothink")
    assert done.out == "Hel\nHello.\n"
    assert "ds4: the device fell off\n" in done.err
    assert done.code == 0
    failed.clear()
    assert chat(ds4, b"Hi\n", "--nothink").code == 1


# --- the conversation as a whole


def test_undo_takes_the_last_turn_back(ds4):
    done = chat(ds4, b"Hi\nMore\n/undo\nElse\n/undo\n/undo\n/undo\n", "--nothink")
    assert (done.code, done.out) == (0, 3 * "Hello.\n")
    assert "ds4: removed: More (1 turn left)\n" in done.err and "ds4: removed: Hi (0 turns left)\n" in done.err
    assert "ds4: /undo: nothing has been said yet\n" in done.err
    chat(ds4, b"Hi\nMore\n/undo\nElse\n", "--nothink")
    assert ds4.engine.sessions[-1].tokens == turns(b"Hi", b"Else", answer=b"Hello.", tag=TOK.think_close)


def test_regen_answers_the_last_message_again(ds4):
    done = chat(ds4, b"Hi\nMore\n/regen\nLast\n", "--nothink", "--temp", "1")
    assert (done.code, done.out) == (0, 4 * "Hello.\n") and "temperature 0" not in done.err
    (session,) = ds4.engine.sessions
    wanted = turns(b"Hi", b"More", b"Last", answer=b"Hello.", tag=TOK.think_close)
    assert session.tokens == wanted
    assert session.rewound == [len(turns(b"Hi", b"More", answer=b"Hello.", tag=TOK.think_close)) - len(b"Hello.")]
    assert session.evaluated == len(wanted) + len(b"Hello."), "the prompt was not evaluated again"
    done = chat(ds4, b"/regen\nHi\n/regen\n", "--temp", "0")
    assert "ds4: /regen: nothing has been said yet\n" in done.err
    assert "ds4: temperature 0 gives the same answer again\n" in done.err


def test_system_text_can_be_changed(ds4):
    done = ds4("-sys", "Old", "--nothink", stdin=b'Hi\n/system\n/system Be  brief.\nMore\n/system ""\nEnd\n')
    assert "ds4: system: Old\n" in done.err and "ds4: system: Be  brief.\n" in done.err
    assert "ds4: no system prompt\n" in done.err
    three = turns(b"Hi", b"More", b"End", answer=b"Hello.", tag=TOK.think_close)
    assert ds4.engine.sessions[-1].tokens == three
    ds4("-sys", "Old", "--nothink", stdin=b"Hi\n/system New\nMore\n")
    two = turns(b"Hi", b"More", answer=b"Hello.", tag=TOK.think_close)
    assert ds4.engine.sessions[-1].tokens == [TOK.bos, *b"New", *two[1:]]


def test_every_command_is_in_the_help_and_completed():
    assert all(re.search(rf"(^|, ){name}\b", HELP, re.M) for name in Chat.__new__(Chat).all_commands())
    assert max(map(len, HELP.splitlines())) < 80


def test_ctrl_z_suspends_and_is_no_part_of_the_message(monkeypatch, tmp_path):
    from prompt_toolkit.application import Application, create_app_session
    from prompt_toolkit.input import create_pipe_input
    from prompt_toolkit.output import DummyOutput

    suspended = []
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(Application, "suspend_to_background", lambda self, group=True: suspended.append(group))
    with create_pipe_input() as keys, create_app_session(input=keys, output=DummyOutput()):
        keys.send_text("ab\x1acd\r")
        assert lineedit._editor("> ", ())() == "abcd"
    assert len(suspended) == 1


# --- history


def test_a_history_is_the_users_alone_and_never_in_the_way(tmp_path):
    history = open_history(tmp_path / "h")
    history.append_string("two\nlines")
    assert list(open_history(tmp_path / "h").load_history_strings()) == ["two\nlines"]
    assert (tmp_path / "h").stat().st_mode & 0o777 == 0o600
    open_history(tmp_path / "absent" / "h").append_string("x")
