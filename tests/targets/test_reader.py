"""The reader of answers, piece by piece: calls inside reasoning that was never closed, blocks that lack their end."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ds4ref.generate import Piece
from ds4ref.targets.answer import Delta, Finish, collect
from ds4ref.targets.reader import AnswerReader
from ds4ref.text.dsml import ToolCall, render_calls
from ds4ref.text.protocol import CANONICAL, DIALECTS

CALLS = (ToolCall("bash", '{"command":"ls && pwd","n":1}'), ToolCall("pwd", "{}"))
BLOCK = "".join(part.text for part in render_calls(CALLS))
CUT = BLOCK[: BLOCK.index('<\uff5cDSML\uff5cinvoke name="pwd')]


def read(thought: str, said: str = "", ended: str = "stop", *, sizes=(1,), closed: bool | None = None, **options):
    """What comes out of an answer: its deltas, the last with the finish reason, and the reader."""
    reader = AnswerReader(options.pop("tools", True), **options)
    closed = bool(said) if closed is None else closed
    deltas = [reader.feed(Piece(1, text, True)) for text in cut(thought, sizes)]
    if closed:
        deltas.append(reader.feed(Piece(2, "", True)))
        deltas += [reader.feed(Piece(3, text, False)) for text in cut(said, sizes)]
    ended = "" if reader.done else ended
    rest = reader.finish(ended, thinking=not closed)
    last = Delta(rest.text, reasoning=rest.reasoning, calls=rest.calls, void=rest.void, finish=reader.reason(ended))
    return collect([*deltas, last]), reader, deltas


def cut(text: str, sizes) -> list[str]:
    found, at = [], 0
    for i in range(len(text)):
        size = sizes[i % len(sizes)]
        if at < len(text):
            found.append(text[at : at + size])
            at += size
    return found


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("sizes", [(1,), (7,), (10_000,)])
def test_a_whole_block_at_the_end_of_unclosed_reasoning_counts(dialect, sizes) -> None:
    block = BLOCK
    for ours, theirs in zip(CANONICAL, dialect, strict=True):
        block = block.replace(ours, theirs)
    done, reader, deltas = read("I will list them." + block, sizes=sizes)
    assert (done.reasoning, done.text, done.finish) == ("I will list them.", "", Finish.TOOL_CALLS)
    assert done.calls == CALLS and reader.generated.raw_block == block
    # Nothing of it was said before it was certain.
    assert "".join(delta.reasoning for delta in deltas) == "I will list them."
    assert not any(delta.calls for delta in deltas) and not reader.done
    assert reader.reasoning == "I will list them." and reader.text == ""


def test_white_space_may_follow_and_the_limit_may_end_it() -> None:
    done, _, _ = read(f"r{BLOCK}\n ")
    assert (done.reasoning, done.calls) == ("r", CALLS)
    done, _, _ = read(f"r{BLOCK}", ended="length")
    assert (done.finish, done.calls) == (Finish.TOOL_CALLS, CALLS)
    done, reader, _ = read(f"r{BLOCK}", ended="cancelled")
    assert (done.finish, done.calls, done.reasoning) == (Finish.CANCELLED, (), f"r{BLOCK}")


@pytest.mark.parametrize("sizes", [(1,), (9,), (10_000,)])
def test_what_goes_on_was_thinking_aloud(sizes) -> None:
    for thought, said in (
        (f"x{BLOCK}", "Final"),  # closed: an example
        (f"x{BLOCK}", ""),
        (f"x{BLOCK} no, rather not.", ""),
        (f"x{BLOCK} or{CUT}", ""),
        (f"x{CUT}", ""),  # not whole
        (f"x{CANONICAL.block_open}", ""),
        (f"{CANONICAL.block_open} is how it begins", ""),
        (f"x{CANONICAL.block_close} y", ""),  # an end of nothing
        (f"x{BLOCK.replace('name=', 'nom=')}", ""),  # malformed
        (f"<think>x{BLOCK} </think> y", "z"),  # tags that are only spelled
        ("<think", ""),
    ):
        closed = bool(said) or thought == f"x{BLOCK}"
        done, reader, _ = read(thought, said, sizes=sizes, closed=closed)
        assert (done.reasoning, done.text, done.finish) == (thought, said, Finish.STOP), thought
        assert done.calls == () and not reader.generated.complete and not done.error
    done, _, _ = read(f"x{CUT}", ended="length")
    assert (done.reasoning, done.finish) == (f"x{CUT}", Finish.LENGTH)


def test_the_last_block_counts() -> None:
    done, _, _ = read(f"first{BLOCK} no, second{BLOCK}")
    assert (done.reasoning, done.calls) == (f"first{BLOCK} no, second", CALLS)
    broken = BLOCK.replace("name=", "nom=")
    done, _, _ = read(f"first{broken} then{BLOCK}")
    assert (done.reasoning, done.calls) == (f"first{broken} then", CALLS)


def test_without_tools_a_block_in_reasoning_is_reasoning() -> None:
    done, _, deltas = read(f"r{BLOCK}", tools=False)
    assert (done.reasoning, done.calls, done.finish) == (f"r{BLOCK}", (), Finish.STOP)
    assert "".join(delta.reasoning for delta in deltas) == f"r{BLOCK}"


def test_reasoning_streams_but_for_what_may_be_markup() -> None:
    reader = AnswerReader(True)
    said = [reader.feed(Piece(1, text, True)).reasoning for text in ("a < b", " and ", "<", "tool", "s>", " \n", "x")]
    assert said == ["a < b", " and", "", "", " <tools>", "", " \nx"]


PARTS = ("a", " ", "\n", BLOCK, CUT, CANONICAL.block_open, CANONICAL.block_close, "<", "<think>")


@given(st.lists(st.sampled_from(PARTS)), st.lists(st.integers(1, 40), min_size=1, max_size=5))
def test_nothing_is_lost_and_cuts_do_not_matter(parts, sizes) -> None:
    thought = "".join(parts)
    done, reader, _ = read(thought, sizes=sizes)
    whole, _, _ = read(thought, sizes=(10_000,))
    assert (done.reasoning, done.calls, done.finish) == (whole.reasoning, whole.calls, whole.finish)
    block = reader.generated.raw_block
    assert thought.startswith(done.reasoning + block)
    assert not thought[len(done.reasoning + block) :].strip()
    assert bool(block) == bool(done.calls)


# --- blocks without their end


@pytest.mark.parametrize("drop", [1, 5, len(CANONICAL.block_close), len(CANONICAL.block_close) + 1])
def test_a_block_without_its_end_is_text(drop) -> None:
    cut_off = BLOCK[: len(BLOCK) - drop]
    done, _, _ = read("", f"ok{cut_off}", closed=True)
    assert done.calls == () and done.finish == Finish.ERROR and done.text == f"ok{cut_off}"
