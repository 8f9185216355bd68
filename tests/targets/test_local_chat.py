"""The local target as a partner in a conversation: reasoning apart, tools, guiding, stopping, several at once."""

from __future__ import annotations

import numpy as np
import pytest

from ds4ref.cancellation import Cancellation
from ds4ref.errors import TokenError, UsageError
from ds4ref.sampling import argmax
from ds4ref.targets import Finish, Message, Prompt, Request, ToolCall, Usage, collect
from ds4ref.targets.local import LocalTarget
from ds4ref.text.chat import render
from ds4ref.text.dsml import render_calls
from ds4ref.text.protocol import CANONICAL, THINK_CLOSE
from tests.cli.fake import FakeEngine

TOOL = '{"name":"ls","description":"lists","parameters":{"type":"object","properties":{"p":{"type":"string"}}}}'
CALLS = (ToolCall("ls", '{"p":"."}'), ToolCall("pwd", "{}"))
BLOCK = "".join(part.text for part in render_calls(CALLS))


@pytest.fixture(scope="module")
def local(nano_path):
    """The real engine, which says what its random weights make it say."""
    with LocalTarget.open(nano_path, backend="reference", ctx=128) as target:
        yield target


class Scripted(LocalTarget):
    """On the fake engine: one byte a token, and an answer as a script has it."""

    def __init__(self) -> None:
        super().__init__(FakeEngine("fake.gguf"), ctx=8192)

    def says(self, text: str) -> list[int]:
        """The answers from now on; control strings in ``text`` are control tokens. EOS comes behind."""
        ids = self.tokenize(text, control=True)
        self.engine.answer = ids
        for session in self._idle:
            session.answer = ids
        return ids


@pytest.fixture
def fake():
    return Scripted()


def ask(thinking: str = "none", tools: bool = False, **more) -> Request:
    prompt = Prompt.conversation([Message("user", "Hi")], [TOOL] * tools, thinking)
    return Request(prompt, **{"max_tokens": 500, **more})


def test_reasoning_is_apart_and_counted(fake) -> None:
    ids = fake.says(f"Let me see.{THINK_CLOSE}It is two.")
    done = fake.complete(ask("high"))
    assert (done.reasoning, done.text, done.finish) == ("Let me see.", "It is two.", Finish.STOP)
    assert done.usage == Usage(len(fake.encode(ask("high").prompt)), len(ids) + 1, 0, len("Let me see.") + 1)
    assert [step.token.id for step in done.steps] == [*ids, fake.tokenizer.eos]
    assert len(done.arrivals) == len(ids) + 1
    fake.says("a")
    ids = fake.engine.answer = fake._idle[0].answer = [*b"a\xe2\x82"]
    done = fake.complete(ask("high"))
    assert (done.reasoning, done.usage.reasoning) == ("a\ufffd", len(ids)), "a piece without a token is none"
    fake.says(f"Let me see.{THINK_CLOSE}It is two.")
    done = fake.complete(ask("high", max_tokens=5))
    assert (done.text, done.reasoning, done.finish) == ("", "Let m", Finish.LENGTH) and done.usage.reasoning == 5


def test_reasoning_is_not_searched_for_stop_strings(fake) -> None:
    fake.says(f"a STOP b{THINK_CLOSE}c STOP d")
    done = fake.complete(ask("high", stop=("STOP",)))
    assert (done.reasoning, done.text, done.finish) == ("a STOP b", "c ", Finish.STOP)


def test_calls_are_taken_out_of_their_markup(fake) -> None:
    fake.says(f"I look.{THINK_CLOSE}Wait.{BLOCK}and more that nobody reads")
    deltas = list(fake.stream(ask("high", tools=True)))
    done = collect(iter(deltas))
    assert (done.reasoning, done.text, done.finish) == ("I look.", "Wait.", Finish.TOOL_CALLS)
    assert done.calls == CALLS and done.markup == BLOCK and done.error == ""
    assert CANONICAL.block_open not in "".join(delta.text for delta in deltas)
    assert len([delta for delta in deltas if delta.calls]) > 3, "as they come"
    assert done.steps[-1].token.raw == b">", "decoding stops with the block"


def test_the_answer_goes_back_as_it_was_written(fake) -> None:
    """The next turn's prompt begins with every token of this one: nothing is evaluated twice."""
    request = ask("high", tools=True)
    ids = fake.says(f"I look.{THINK_CLOSE}Wait.{BLOCK}")
    first = fake.complete(request)
    answer = Message("assistant", first.text, first.reasoning, first.calls, first.markup)
    more = Prompt.conversation([*request.prompt.messages, answer, Message("tool", "a.c")], [TOOL], "high")
    # the last token was picked, and the block was over: nobody had to evaluate it
    assert fake.complete(Request(more)).usage.cached == len(fake.encode(request.prompt)) + len(ids) - 1
    assert fake.encode(more) == render(more.messages, more.tools, "high").encode(fake.tokenizer)


def test_malformed_calls_are_text(fake) -> None:
    broken = BLOCK.replace(' name="ls"', "")
    fake.says(f"So.{broken}")
    done = fake.complete(ask(tools=True))
    assert done.text == f"So.{broken}" and done.calls == () and done.finish is Finish.STOP and done.error
    cut = BLOCK[: BLOCK.index("pwd")]
    ids = fake.says(f"So.{cut}")
    done = fake.complete(ask(tools=True))
    assert done.text == f"So.{cut}" and done.calls == () and done.finish is Finish.ERROR and "not closed" in done.error
    assert fake.complete(ask(tools=True, max_tokens=len(ids))).finish is Finish.LENGTH


def test_an_unknown_thinking_mode(fake) -> None:
    with pytest.raises(UsageError, match="unknown thinking mode 'deep'"):
        fake.complete(ask("deep"))


# --- guiding


@pytest.mark.thorough
def test_a_guide_sees_every_token_and_decides(local) -> None:
    """A budget of four tokens of thought, then a forbidden token, then nothing to say."""
    tok, seen = local.tokenizer, []

    def guide(generation, logits):
        seen.append((len(generation.tokens), generation.thinking))
        if generation.thinking and len(generation.tokens) == 4:
            return tok.think_close
        if len(generation.tokens) == 5:
            masked = logits.copy()
            masked[argmax(logits)] = -np.inf
            return masked
        return None

    free = local.complete(ask("high", max_tokens=8))
    done = local.complete(ask("high", max_tokens=8, guide=guide, top_logprobs=2))
    ids = [step.token.id for step in done.steps]
    assert ids[:4] == [step.token.id for step in free.steps[:4]] and ids[4] == tok.think_close
    assert seen == [(i, i < 5) for i in range(8)] and done.usage.reasoning == 5 and done.text
    assert ids[5] == done.steps[5].top[1].id, "the best was forbidden; what is told of it are the model's own numbers"
    with pytest.raises(TokenError, match="guided to token 99999999, outside the vocabulary"):
        local.complete(ask(guide=lambda generation, logits: 99999999))


# --- stopping


def test_stopping_between_tokens_keeps_what_there_is(fake) -> None:
    cancel = Cancellation()

    def guide(generation, logits):
        if len(generation.tokens) == 3:
            cancel.press()

    done = fake.complete(ask("high", guide=guide, cancel=cancel))
    assert done.finish is Finish.CANCELLED and len(done.steps) == 4 and done.reasoning == "Hell"
    assert fake.complete(ask("high", cancel=cancel)).finish is Finish.CANCELLED, "before the first token"


def test_stopping_inside_a_call_is_no_mistake_of_the_model(fake) -> None:
    cancel = Cancellation()
    ids = fake.says(BLOCK)

    def guide(generation, logits):
        if len(generation.tokens) == len(ids) // 2:
            cancel.press()

    assert fake.complete(ask(tools=True, guide=guide, cancel=cancel)).finish is Finish.CANCELLED


def test_a_stream_that_nobody_reads_on_gives_its_session_back(fake) -> None:
    stream = fake.stream(ask())
    next(stream)
    assert len(fake._idle) == 0
    stream.close()
    assert len(fake._idle) == 1


# --- several at once


@pytest.mark.parametrize("sessions, cached", [(1, [0, 0, 0, 0]), (2, [0, 0, 40, 40])])
def test_so_many_conversations_keep_their_prefill(fake, sessions: int, cached: list[int]) -> None:
    target = LocalTarget(fake.engine, ctx=256, sessions=sessions)
    turns = [range(40, 80), range(140, 180), range(40, 90), range(140, 190)]
    asks = [Request(Prompt.tokens(ids), max_tokens=1) for ids in turns]
    assert [target.complete(a).usage.cached for a in asks] == cached
    assert target.complete(Request(Prompt.tokens(range(40, 95)), 1, ctx=512)).usage.cached == 0, "a larger context"
    assert len(target._idle) <= sessions


def test_the_longest_beginning_is_gone_on_from(fake) -> None:
    """Also where a shorter one was used later."""
    target = LocalTarget(fake.engine, ctx=256, sessions=2)
    for ids, cached in ((range(40, 80), 0), (range(40, 90), 40), (range(40, 50), 0), (range(40, 95), 50)):
        assert target.complete(Request(Prompt.tokens(ids), max_tokens=1)).usage.cached == cached


def test_at_least_one_session_is_kept() -> None:
    with pytest.raises(UsageError, match="at least 1 session"):
        LocalTarget(None, sessions=0)
