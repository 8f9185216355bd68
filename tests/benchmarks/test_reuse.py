"""Recorded traffic, replayed: what is counted is what a server would evaluate."""

import json

import pytest

from benchmarks import reuse
from ds4ref.engine import Engine


@pytest.fixture(scope="module")
def tokenizer(nano_path):
    with Engine.open(nano_path, threads=1) as engine:
        yield engine.tokenizer


def test_texts_have_their_length_again():
    cut = {"a": ["You are a coding agent running in the Co…[truncated: 5000 bytes]", "[82 bytes]", "short"]}
    long = reuse.long_again(cut)
    assert [len(text) for text in long["a"]] == [5000, 82, 5] and long == reuse.long_again(cut)
    assert long["a"][0].startswith("You are a coding agent running in the Co ")
    assert reuse.long_again("x…[truncated: 500 bytes]") != reuse.long_again("y…[truncated: 500 bytes]")


def recording(path, *conversations):
    """A file of chat requests."""
    lines = []
    for n, said in enumerate(conversations):
        messages = [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(said)]
        body = {"messages": messages, "thinking": False}
        lines.append(json.dumps({"n": n, "path": "/v1/chat/completions", "headers": {}, "body": body}))
    path.write_text("\n".join(lines))
    return path


def test_a_side_request_costs_a_single_session_its_conversation(tokenizer, tmp_path):
    long, side = "Tell me about the sea. " * 50, "A title for this, please. " * 5
    path = recording(tmp_path / "x.jsonl", [long], [side], [long, "It is wide.", "And?"])
    asked = reuse.turns(path)
    assert reuse.answers(asked) == ["It is wide.", "Done.", "Done."]
    found = {way: reuse.replay([path], tokenizer, way) for way in reuse.WAYS}
    assert {one["prompt"] for one in found.values()} == {found["none"]["evaluated"]}
    first = len(asked[0].rendered().encode(tokenizer))
    saved = found["one session"]["evaluated"] - found["timelines"]["evaluated"]
    assert saved >= first
    assert found["none"]["evaluated"] == found["one session"]["evaluated"]


def test_a_single_session_goes_on_with_what_it_holds(tokenizer, tmp_path):
    long = "Tell me about the sea. " * 50
    path = recording(tmp_path / "x.jsonl", [long], [long, "It is wide.", "And?"])
    one, ours = (reuse.replay([path], tokenizer, way) for way in ("one session", "timelines"))
    assert one == ours and one["evaluated"] < one["prompt"]


def test_the_recordings_are_there():
    found = reuse.by_client(reuse.FOLDER)
    assert {"claude", "codex", "opencode", "pi", "qwen"} <= set(found) and not {"lm", "sdk"} & set(found)
