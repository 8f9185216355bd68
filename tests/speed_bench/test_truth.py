"""What is reported of an endpoint against what it did: scripts of pieces with known times, on a clock that only they
move. The truth is computed here, from the script alone."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import pytest

from ds4ref.runs.results import read_rows
from ds4ref.speed_bench import cli
from ds4ref.speed_bench import endpoint as bench

from .server import PREFILL, WORDS, Server, scripted


@dataclass
class Piece:
    """So many tokens in one event, so many seconds after the one before. ``unseen`` ones are counted, not streamed."""

    kind: str
    tokens: int
    seconds: float
    unseen: int = 0


def script(sent, names=("reasoning",), tells=True, words=WORDS):
    """A server that answers with ``sent`` of ``words``, whatever it is asked; the first comes after the prefill and its
    own seconds."""

    def pieces(prompt, whole):
        texts = itertools.cycle(words)
        yield 0.0, {"role": "assistant", "content": ""}
        for number, piece in enumerate(sent):
            text = "".join(itertools.islice(texts, piece.tokens))
            call = {"index": 0, "function": {"arguments": text} | ({} if number else {"name": "write"})}
            of = {"reasoning": dict.fromkeys(names, text), "call": {"tool_calls": [call]}, "content": {"content": text}}
            yield piece.seconds, of[piece.kind] if piece.tokens else None

    def says(prompt, made, asked):
        thought = sum(piece.unseen + piece.tokens for piece in sent if piece.kind == "reasoning")
        details = {"completion_tokens_details": {"reasoning_tokens": thought}} if tells else {}
        return {"completion_tokens": sum(piece.tokens + piece.unseen for piece in sent), **details}

    return Server(pieces=pieces, says=says, streams=True)


def pieces(count, kind="content", tokens=1, seconds=0.02):
    return [Piece(kind, tokens, seconds) for _ in range(count)]


def every(seconds_of, count=64):
    return [Piece("content", 1, seconds_of(i)) for i in range(count)]


SCRIPTS = {
    "one token a piece": pieces(64),
    "reasoning, then an answer": pieces(40, "reasoning") + pieces(24),
    "an answer, then a call": pieces(10) + pieces(40, "call", seconds=0.03),
    "one token, then seven a piece": pieces(1) + pieces(24, tokens=7, seconds=0.05),
    "one to five tokens a piece": [Piece("content", 1 + i * 7 % 5, 0.01 * (1 + i % 3)) for i in range(60)],
    "a slow first piece": pieces(1, seconds=0.5) + pieces(63),
    "stalls": every(lambda i: 1.5 if i in (20, 40) else 0.02),
    "reasoning in pieces of three, a stall, a call": pieces(20, "reasoning", 3, 0.06) + pieces(1, seconds=2.0)
    + pieces(30, "call", 2, 0.04),
}  # fmt: skip


def truth(script, depth):
    """Milliseconds, and tokens per second after the first piece."""
    gaps = sorted(1e3 * piece.seconds for piece in script[1:])
    ttft = 1e3 * (PREFILL * depth + script[0].seconds)
    tokens, e2e = sum(piece.tokens for piece in script), ttft + sum(gaps)

    def quantile(q):
        low, rest = divmod(q * (len(gaps) - 1), 1)
        return gaps[int(low)] + rest * (gaps[min(int(low) + 1, len(gaps) - 1)] - gaps[int(low)])

    return {
        "ttft_ms": ttft, "e2e_ms": e2e, "gen_tokens": tokens, "itl_p50_ms": quantile(0.5), "itl_p95_ms": quantile(0.95),
        "gen_tps": 1e3 * (tokens - script[0].tokens) / sum(gaps), "prefill_tps": 1e3 * depth / ttft,
        "total_tps": 1e3 * tokens / e2e, "gen_first_ms": 1e3 * script[1].seconds,
    }  # fmt: skip


def swept(monkeypatch, tmp_path, endpoint, api="chat"):
    scripted(monkeypatch, fake=endpoint)
    monkeypatch.chdir(tmp_path)
    argv = ["--frontiers", "300,900", "-n", "64", "--target", "http://fake/v1", "--api", api, "-r", "2"]
    return cli.main([*argv, "--csv", "s.csv", "--no-store"])


@pytest.mark.parametrize("name, more, api", [
    *((name, {}, "chat") for name in SCRIPTS), ("one to five tokens a piece", {}, "completions"),
    ("reasoning, then an answer", {"names": ("reasoning", "reasoning_content")}, "chat"),
])  # fmt: skip
def test_every_figure_is_within_two_per_cent_of_the_truth(name, more, api, monkeypatch, tmp_path):
    assert swept(monkeypatch, tmp_path, script(SCRIPTS[name], **more), api) == 0
    for row in read_rows(tmp_path / "s.csv"):
        expected = truth(SCRIPTS[name], row["prompt_tokens"])
        assert {column: row[column] for column in expected} == pytest.approx(expected, rel=0.02)


HIDDEN = [Piece("reasoning", 0, 0.8, unseen=40), *pieces(12)]
"""A second of thoughts that nobody sees: 50 t/s look like 230."""


@pytest.mark.parametrize("sent, tells, says", [
    (HIDDEN, True, "counts 40 tokens of reasoning that it does not stream"),
    (HIDDEN, False, "counts 52 tokens"),
    ([Piece("content", 0, 0.8, unseen=30), *pieces(24)], False, "counts 54 tokens"),
    # too quick to have been decoded like the others, but a token has a character at least
    ([Piece("content", 0, 0.05, unseen=60), *pieces(12)], False, "counts 72 tokens"),
])  # fmt: skip
def test_a_rate_that_its_own_pieces_contradict_is_refused(sent, tells, says, monkeypatch, tmp_path, capsys):
    assert swept(monkeypatch, tmp_path, script(sent, tells=tells)) == 1
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("ds4-bench: http://fake/v1 " + says) and "cannot be measured" in last


def test_tags_of_thinking_that_closed_at_once_are_no_contradiction(monkeypatch, tmp_path):
    """Four tokens of reasoning that show nothing; of five it could not be said."""
    sent = [Piece("reasoning", 0, 0.08, unseen=4), *pieces(48)]
    assert swept(monkeypatch, tmp_path, script(sent)) == 0
    sent[0] = Piece("reasoning", 0, 0.1, unseen=5)
    assert swept(monkeypatch, tmp_path, script(sent)) == 1


@pytest.mark.parametrize(
    ("points", "characters"),
    [
        ({400: 216, 2000: 1016}, 1000),
        ({400: 216, 2000: 1016, 970: 518, 974: 518}, 966),  # a nonce has some tokens more or less
        ({400: 216, 2000: 1016, 970: 519, 974: 518}, 970),
        ({400: 216, 970: 518, 1034: 500}, 966),
    ],
)
def test_the_length_of_a_prompt_does_not_hang_on_the_tokens_of_nonces(points, characters):
    endpoint = object.__new__(bench.Endpoint)
    endpoint.text, endpoint._points = "x" * 90000, points
    assert endpoint._characters(516) == characters


@pytest.mark.parametrize("sent, words", [
    # a token inside a character brings no text: gaps get longer, and the rate is right
    ([Piece("content", i % 2, 0.02, unseen=1 - i % 2) for i in range(1, 65)], WORDS),
    # several in a row: whether the first piece held one token cannot be seen then, its share by length is a guess
    ([Piece("content", int(i % 8 < 2), 0.02, unseen=int(i % 8 >= 2)) for i in range(66)], WORDS),
    # rare characters are spelled byte by byte: four tokens, one character
    ([Piece("content", 1, 0.08, unseen=3) for _ in range(32)], ("\U0001f9ff",)),
])  # fmt: skip
def test_tokens_without_text_are_no_contradiction(sent, words, monkeypatch, tmp_path):
    assert swept(monkeypatch, tmp_path, script(sent, words=words)) == 0
    assert [row["gen_tps"] for row in read_rows(tmp_path / "s.csv")] == pytest.approx([50, 50], rel=0.05)
