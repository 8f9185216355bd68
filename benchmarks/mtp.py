"""Acceptance of drafts of the block for multi-token prediction, on text that the model writes greedily.

    python -m benchmarks.mtp                                the embedded model, 8 prompts of each skill
    python -m benchmarks.mtp --prompts 2 --depth 6
    python -m benchmarks.mtp -m MODEL.gguf --mtp MTP.gguf --skills story

After every token of an answer the drafts are compared with what the model wrote then. A share "to depth n" is that of
positions whose first n drafts are all right, of those where n more tokens were written. Each way of drafting gets its
own column group:

    next      the streams of a position with the token after it: what ``Mtp`` does
    same      the streams of a position with the token of that position, as ds4's first call does; it drafts the next
              token, which is known, first, so that depth n here is its draft n + 1, and all before it are right
    no past   as "next", but the block has seen none of the prompt: what a prompt costs whose streams were not kept

Prints a table and a line of JSON. The last line tells what drafts cost: medians of ``--rounds`` rounds in turn, in this
process.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from ds4ref.archs.deepseek4.mtp import Block
from ds4ref.drafts.mtp import Mtp
from ds4ref.engine import Engine
from ds4ref.nano import mtp_path
from ds4ref.nano.skills import held_out
from ds4ref.runs.provenance import stamp

SKILLS = ("story", "facts", "lists/reverse", "lists/sort", "sums3", "think/sums3", "tools/open", "recall/window")
WAYS = ("next", "same", "no past")


class Same(Mtp):
    """Drafts from streams paired with the token of their own position."""

    @staticmethod
    def paired(tokens: Sequence[int], start: int, end: int) -> Sequence[int]:
        return tokens[start:end]


def written(engine: Engine, prompt: Sequence[int], count: int) -> tuple[list[int], np.ndarray]:
    """Return a prompt with its greedy continuation, at most ``count`` tokens and an end, and the streams of all tokens
    but the last, (T - 1, C, D)."""
    session = engine.session(len(prompt) + count + 1)
    streams: list[np.ndarray] = []
    session.extend(prompt, streams=streams)
    tokens = [*prompt, session.argmax()]
    while len(tokens) < len(prompt) + count and tokens[-1] != engine.tokenizer.eos:
        session.append(tokens[-1])
        streams.append(session.streams)
        tokens.append(session.argmax())
    return tokens, np.concatenate(streams)


def hits(block: Block, way: str, tokens: list[int], X: np.ndarray, start: int, depth: int) -> list[int]:
    """Return how many leading drafts were right, for the pending token at each position from ``start`` on.

    X: streams of all tokens but the last, or more.
    """
    mtp = (Same if way == "same" else Mtp)(block)
    extra = int(way == "same")
    right, known = [], 0
    for end in range(start, len(tokens) - 1):
        first = end - 1 if way == "no past" and end == start else known
        drafts = mtp.propose(tokens[: end + 1], X[first:end], depth + extra)
        known = end
        truth = tokens[end + 1 - extra : end + 1 + depth]
        same = next((n for n, pair in enumerate(zip(drafts, truth, strict=False)) if pair[0] != pair[1]), len(truth))
        right.append(max(0, same - extra))
    return right


def shares(right: Sequence[Sequence[int]], depth: int) -> list[float | None]:
    """Return the share of positions whose first 1, 2, ... drafts are right, None where no text is so long; ``right`` is
    a list for each text, of which the last position has one more token, the one before two, and so on."""
    found: list[float | None] = []
    for n in range(1, depth + 1):
        counted = [count >= n for text in right for count in text[: max(0, len(text) - n + 1)]]
        found.append(sum(counted) / len(counted) if counted else None)
    return found


def costs(engine: Engine, block: Block, tokens: list[int], X: np.ndarray, rounds: int) -> dict[str, list[float]]:
    """Return seconds of a decoded token, a first draft, and two drafts, round by round."""
    session, mtp = engine.session(len(tokens) + rounds + 1), Mtp(block)
    session.sync(tokens[:-1])
    seconds: dict[str, list[float]] = {"token": [], "one draft": [], "two drafts": []}
    for _ in range(rounds):
        for name, work in (
            ("token", lambda: session.append(tokens[-1])),
            ("one draft", lambda: mtp.propose(tokens, X, 1)),
            ("two drafts", lambda: mtp.propose(tokens, X, 2)),
        ):
            mtp.truncate(len(tokens) - 1)
            began = time.perf_counter()
            work()
            seconds[name].append(time.perf_counter() - began)
    return {name: values[rounds // 10 :] for name, values in seconds.items()}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.mtp", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-m", "--model", help="model file (the embedded model)")
    parser.add_argument("--mtp", help="file of its block (that of the embedded model)")
    parser.add_argument("--skills", nargs="+", default=SKILLS, metavar="SKILL", help="whose prompts are answered")
    parser.add_argument("--prompts", type=int, default=8, help="prompts of each skill (%(default)s)")
    parser.add_argument("--tokens", type=int, default=96, help="maximum tokens of an answer (%(default)s)")
    parser.add_argument("--depth", type=int, default=4, help="drafts after each token (%(default)s)")
    parser.add_argument("--rounds", type=int, default=200, help="rounds of timing, 0: none (%(default)s)")
    parser.add_argument("--threads", type=int)
    args = parser.parse_args(arguments)
    record: dict[str, Any] = {**stamp(), "shares": {}}
    with Engine.open(args.model, threads=args.threads) as engine:
        block = Block.open(args.mtp or mtp_path(), engine.model)
        rights: dict[str, list[list[int]]] = {way: [] for way in WAYS}
        ahead = " ".join(f"{n:5}" for n in range(1, args.depth + 1))
        print(f"{'':14} {'tokens':>6}  " + "  ".join(f"{way}: {ahead}" for way in WAYS))
        for skill in args.skills:
            mine: dict[str, list[list[int]]] = {way: [] for way in WAYS}
            for item in held_out(skill, args.prompts, seed=1):
                prompt = item.prompt().encode(engine.tokenizer)
                tokens, X = written(engine, prompt, args.tokens)
                for way in WAYS:
                    mine[way].append(hits(block, way, tokens, X, len(prompt), args.depth))
            record["shares"][skill] = _row(skill, mine, args.depth)
            for way in WAYS:
                rights[way] += mine[way]
        record["shares"]["all"] = _row("all", rights, args.depth)
        if args.rounds:
            record["seconds"] = costs(engine, block, tokens, X[: len(tokens) - 1], args.rounds)
            medians = {name: statistics.median(values) for name, values in record["seconds"].items()}
            one, two = medians["one draft"] / medians["token"], medians["two drafts"] / medians["token"]
            print(f"of a decoded token's time: one draft {one:.2f}, two {two:.2f}")
            record["seconds"] = {
                name: [float(np.quantile(values, q)) for q in (0.25, 0.5, 0.75)]
                for name, values in record["seconds"].items()
            }
        block.close()
    print(json.dumps(record))
    return 0


def _row(name: str, rights: dict[str, list[list[int]]], depth: int) -> dict[str, Any]:
    """Print a row of the table; return its figures."""
    found = {way: shares(right, depth) for way, right in rights.items()}
    count = sum(map(len, rights["next"]))
    shown = {way: " ".join("    -" if share is None else f"{share:5.2f}" for share in found[way]) for way in WAYS}
    cells = "  ".join(f"{'':{len(way)}}  {shown[way]}" for way in WAYS)
    print(f"{name:14} {count:6}  {cells}", flush=True)
    return {"tokens": count, **found}


if __name__ == "__main__":
    sys.exit(main())
