"""The decode loop on a scripted session: what it emits, when it stops, what it leaves behind."""

from __future__ import annotations

import copy

import numpy as np
import pytest

from ds4ref.errors import ContextError, SessionError
from ds4ref.generate import Generation, Timing, check_fits, prefill
from ds4ref.sampling import Sampler
from ds4ref.sampling.adjust import Adjustment
from tests.cli.fake import VOCAB, FakeSession, byte_tokenizer

TOK = byte_tokenizer()


def start(answer, ctx=100, prompt=(1, 2, 3)) -> FakeSession:
    session = FakeSession(ctx, TOK.eos, answer)
    prefill(session, list(prompt), Timing())
    return session


def generation(session, **options) -> Generation:
    return Generation(session, TOK, greedy(), **{"limit": 1000, **options})


def greedy() -> Sampler:
    return Sampler(temperature=0.0, top_k=0, top_p=1.0, min_p=0.0, seed=1)


def test_text_until_eos_which_is_neither_text_nor_evaluated():
    session = start(b"Hello.")
    run = generation(session)
    assert run.finish == ""
    assert "".join(piece.text + run.finish for piece in run) == "Hello."  # "" while it is running
    assert run.finish == "stop"
    assert bytes(run.tokens) == b"Hello."
    assert session.tokens == [1, 2, 3, *b"Hello."]
    assert run.timing.tokens == 6
    assert run.timing.first_token_s is not None
    assert run.timing.first_token_s <= run.timing.decode_s


def test_the_first_token_is_the_first_with_text():
    """Neither a tag nor the beginning of a character is one."""
    for text, dumb in (("\u20ac!", 2), ("", 1)):
        run = generation(start(text.encode()))
        timings = [run.timing.first_token_s for piece in run if piece.token is not None]
        assert [one is None for one in timings] == [n < dumb for n in range(len(timings))]
    assert run.timing.first_token_s is None


class Ending(type(TOK)):
    """The same vocabulary with more tokens that end an answer."""

    ends = property(lambda self: frozenset((self.eos, ord("!"), ord("?"))))  # type: ignore[assignment]


@pytest.mark.parametrize("end", ["!", "?", None])
def test_every_token_for_the_end_ends_it(end):
    tok = copy.copy(TOK)
    tok.__class__ = Ending
    session = start(b"Hello" + (end or "").encode() + b" more" * bool(end))
    run = Generation(session, tok, greedy(), limit=1000)
    assert "".join(piece.text for piece in run) == "Hello"
    assert (run.finish, run.end) == ("stop", TOK.eos if end is None else ord(end))
    assert bytes(run.tokens) == b"Hello" and session.tokens == [1, 2, 3, *b"Hello"]


def test_one_context_slot_stays_free():
    session = start(b"Hello.", ctx=8)
    run = generation(session)
    assert "".join(piece.text for piece in run) == "Hell"
    assert run.finish == "length"
    assert session.pos == 7


def test_think_state_follows_token_ids_not_text():
    answer = [*b"a</think>", TOK.think_close, *b"b<think>", TOK.think_open, *b"c", TOK.think_close, *b"d"]
    run = generation(start(answer), thinking=True)
    pieces = list(run)
    assert "".join(p.text for p in pieces if p.thinking) == "a</think>c"
    assert "".join(p.text for p in pieces if not p.thinking) == "b<think>d"
    assert run.tokens == answer


@pytest.mark.parametrize("tail", [b"\xe2\x82", b"\xf0\x9f\x98"])
def test_half_a_character_at_the_end_is_shown_as_such(tail):
    pieces = list(generation(start(b"a" + tail)))
    assert "".join(p.text for p in pieces) == "a\ufffd"
    assert pieces[-1].token is None


def test_cancel_between_tokens():
    session = start(b"Hello.")
    run = generation(session, cancel=lambda: session.pos >= 5)
    assert "".join(p.text for p in run) == "He"
    assert run.finish == "cancelled"
    assert session.tokens == [1, 2, 3, *b"He"]


class Clock:
    """Stands in for ``time.perf_counter``: only what a test says takes time."""

    now = 100.0

    def __call__(self) -> float:
        return self.now

    def after(self, seconds: float, function):
        """``function``, taking so long."""

        def slow(*arguments, **options):
            self.now += seconds
            return function(*arguments, **options)

        return slow


def test_whose_time_is_counted(monkeypatch):
    """Prefill, picking (the end token, too) and evaluation are the engine's; what happens between pieces is not."""
    clock = Clock()
    monkeypatch.setattr("time.perf_counter", clock)
    session, sampler, timing = FakeSession(100, TOK.eos, b"abc"), greedy(), Timing()
    session.sync = clock.after(8.0, session.sync)
    session.append = clock.after(1.0, session.append)
    sampler.choose = clock.after(0.25, sampler.choose)
    prefill(session, list(range(20)), timing)
    assert (timing.prefill_s, timing.prefill_tokens, timing.prefill_tps) == (8.0, 20, 2.5)
    for _ in Generation(session, TOK, sampler, limit=50, timing=timing):
        clock.now += 1000
    assert timing.first_token_s == 8.0 + 0.25
    assert timing.decode_s == 4 * 0.25 + 3 * 1.0
    assert (timing.tokens, timing.decode_tps) == (3, 3 / 4.0)
    assert timing.prefill_s == 8.0


@pytest.mark.parametrize("value", [float("nan"), float("-inf"), float("inf")])
def test_logits_that_say_nothing_are_an_error_not_a_token(value, monkeypatch):
    session = start(b"Hello.")
    monkeypatch.setattr(FakeSession, "logits", np.full(VOCAB, value, np.float32))
    with pytest.raises(SessionError, match="the logits at position 3 are not finite"):
        list(generation(session))


def test_prefill_counts_only_what_it_evaluated():
    session = FakeSession(100, TOK.eos, b"")
    timing = Timing()
    prefill(session, [1, 2, 3], timing)
    assert (timing.reused_tokens, timing.prefill_tokens) == (0, 3)
    prefill(session, [1, 2, 3, 4, 5], timing)
    assert (timing.reused_tokens, timing.prefill_tokens) == (3, 2)
    prefill(session, [1, 9], timing)  # diverges: everything again
    assert (timing.reused_tokens, timing.prefill_tokens) == (0, 2)
    prefill(session, [1, 9], timing)
    assert (timing.reused_tokens, timing.prefill_tokens, timing.prefill_tps) == (2, 0, 0.0)


def test_context_is_checked_before_anything_is_evaluated():
    session = FakeSession(10, TOK.eos, b"")
    with pytest.raises(ContextError, match="the prompt has 10 tokens, a context of 10 takes at most 9"):
        prefill(session, list(range(10)), Timing())
    assert session.evaluated == 0
    check_fits(9, 10)
    with pytest.raises(ContextError):
        check_fits(9, 10, room=2)


# --- adjusted logits


class Counted:
    """A session that says how often it chose a token itself, as a device does."""

    def __init__(self, session):
        self._session, self.chosen = session, 0

    def __getattr__(self, name):
        return getattr(self._session, name)

    def argmax(self, exclude=None):
        self.chosen += 1
        return self._session.argmax(exclude)


def test_the_device_does_not_choose_where_logits_are_adjusted():
    session = Counted(start(b"aaaa"))
    assert "".join(piece.text for piece in generation(session)) == "aaaa" and session.chosen == 5
    session = Counted(start(b"aaaa"))
    run = generation(session, adjust=Adjustment({ord("b"): 100.0}), limit=3)
    assert "".join(piece.text for piece in run) == "bbb" and session.chosen == 0


def test_a_penalty_is_for_what_the_answer_has_and_not_for_its_prompt():
    """The script has 50 for its token, and the next best has 1."""
    run = generation(start(b"xxxx", prompt=[ord("x")] * 5), adjust=Adjustment({}, presence=0, frequency=20.0), limit=4)
    assert list(run) and bytes(run.tokens[:3]) == b"xxx", "50, 30, 10"
    assert run.tokens[3] != ord("x"), "-10"
    run = generation(start(b"xxxx"), adjust=Adjustment({}, presence=60.0), limit=3)
    assert list(run) and run.tokens[0] == ord("x") and ord("x") not in run.tokens[1:]


def test_what_is_guided_is_adjusted_too_but_not_a_token_that_is_taken():
    def guide(run, logits):
        if len(run.tokens) == 1:
            return ord("s")
        masked = np.full_like(logits, -np.inf)
        masked[[ord("p"), ord("q")]] = [1, 0]
        return masked

    run = generation(start(b"aaaa"), guide=guide, adjust=Adjustment({ord("q"): 5.0, ord("z"): 100.0}), limit=3)
    assert list(run) and bytes(run.tokens) == b"qsq"
