"""What drafts are worth: tokens a pass of the embedded model's two drafters, speed on a slice of Flash; and which
mistakes of a drafter its acceptance names.

python -m benchmarks.drafts acceptance          DSpark's blocks of 5 against 3 guesses of multi-token prediction,
                                                which also run three layers; on held-out questions of four kinds
python -m benchmarks.drafts speed --model FILE  with and without drafts that are as often right as published ones
                                                (2.7 tokens a pass), or never, without the time to make them; CPU time
                                                of one thread, or the clock with --threads 2
python -m benchmarks.drafts mistakes            an engine in mode ds4 makes each mistake in turn; how often
                                                ``ds4-vectors drafter`` (mode exact, same text) names it
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from ds4ref.drafts.session import DraftingSession
from ds4ref.drafts.speculation import Speculation
from ds4ref.engine import Engine
from ds4ref.engine_options import Drafting
from ds4ref.nano import dspark_path, embedded_path, mtp_path
from ds4ref.nano.skills import held_out
from ds4ref.test_vectors.drafter import SAME, Acceptance, fit, verdict
from ds4ref.variants.drafters import MISTAKES, accepted, observe, opened

from .harness import Row, add_json, interleave, ratios, row, show

KINDS = {
    "stories": ("english", "story"), "reasoning": ("think/sums2", "think/sums3", "think/choice"),
    "tool calls": ("tools/fixed", "tools/open", "tools/result"), "lists": ("lists/copy", "lists/reverse", "lists/sort"),
}  # fmt: skip
PUBLISHED = (0.579, 0.447, 0.316, 0.237, 0.158)
"""Share of drafts accepted up to each position: Flash 0731, greedy, prose (vLLM #41834)."""


def passes(session: DraftingSession, ids: Sequence[int], end: int, most: int) -> tuple[int, int]:
    """Answer the prompt greedily; return the tokens after the first one, and the passes that brought them."""
    session.sync(list(ids))
    count, calls, propose = 0, [], session.speculation.propose

    def counted(*args: Any) -> list[int]:
        calls.append(1)
        return propose(*args)

    session.speculation.propose = counted  # type: ignore[method-assign, assignment]
    while count < most and (token := session.argmax()) != end:
        session.append(token)
        count += 1
    return count, len(calls)


def acceptance(count: int, seed: int) -> Iterator[Row]:
    """Yield tokens a pass by kind of text, and the ratio of the two drafters."""
    results: dict[str, dict[str, float]] = {}
    for name, path, depth in (("mtp", mtp_path(), 3), ("dspark", dspark_path(), 5)):
        drafts = Drafting(name, path, depth=depth)
        with Engine.open(embedded_path(), numerics="exact", drafts=drafts) as engine:
            for kind, skills in KINDS.items():
                done = np.zeros(2)
                for item in (item for skill in skills for item in held_out(skill, count, seed)):
                    ids = item.prompt().encode(engine.tokenizer)
                    done += passes(engine.session(2048), ids, engine.tokenizer.eos, 300)  # type: ignore[arg-type]
                results.setdefault(kind, {})[name] = done[0] / done[1]
    for kind, rates in results.items():
        note = f"{rates['dspark']:.2f} / {rates['mtp']:.2f} tokens a pass"
        yield row(f"DSpark / multi-token prediction, {kind}", [rates["dspark"] / rates["mtp"]], "x", 1.3, note=note)


class Oracle:
    """A source of drafts that are right as often as ``rates`` say, of a text that is known."""

    name, whole = "oracle", True

    def __init__(self, text: Sequence[int], rates: Sequence[float]):
        self.text, self.chances = text, [b / a for a, b in zip((1.0, *rates), rates, strict=False) if a]
        self.rng = np.random.default_rng(1)

    def propose(self, tokens: Sequence[int], streams: Any, limit: int) -> list[int]:
        """Implement ``Draft.propose``."""
        wrong, draft = 0, []
        for token, chance in zip(self.text[len(tokens) :], self.chances[:limit], strict=False):
            wrong += self.rng.random() >= chance
            draft.append(token + (wrong > 0))
        return draft

    def truncate(self, pos: int) -> None:
        """Implement ``Draft.truncate``."""


def speed(model: str, tokens: int, rounds: int, threads: int) -> Iterator[Row]:
    """Yield speed with drafts over speed without, in turn; sessions that have recorded their passes before."""
    clock = time.process_time if threads == 1 else time.perf_counter
    cases: dict[str, tuple[Sequence[float], int]] = {
        "plain": ((), 0), "as often right as published ones": (PUBLISHED, 0), "the same, always 2": (PUBLISHED, 2),
        "the same, always 5": (PUBLISHED, 5), "never right": ((1e-3,) * 5, 0),
    }  # fmt: skip
    with Engine.open(model, numerics="ds4", threads=threads, drafts=Drafting("lookup")) as engine:
        prompt = [1 + (7 * i) % 900 for i in range(32)]
        text = list(prompt)

        def opened(rates: Sequence[float], depth: int) -> Any:
            session: Any = engine.session(len(prompt) + tokens + 16)
            session.speculation = Speculation([Oracle(text, rates)] if rates else [], depth)
            return session

        sessions = {name: opened(*case) for name, case in cases.items()}
        sessions["plain"].sync(prompt)
        for _ in range(tokens):
            text.append(sessions["plain"].argmax())
            sessions["plain"].append(text[-1])

        def decoded(session: Any) -> Callable[[], float]:
            def once() -> float:
                session.sync(prompt)
                begun = clock()
                for token in text[len(prompt) :]:
                    session.append(token)
                return clock() - begun

            return once

        samples = interleave({name: decoded(session) for name, session in sessions.items()}, rounds)
    plain = samples.pop("plain")
    for name, times in samples.items():
        yield row(f"drafts {name} / none", ratios(plain, times), "x", 0.98 if name == "never right" else 1.5)


def answers(engine: Engine, tokens: int, seed: int) -> list[tuple[list[int], int]]:
    """Return the model's answers, of so many tokens together, after their prompts, and where each begins."""
    made: list[tuple[list[int], int]] = []
    number = 0
    while sum(len(ids) - start for ids, start in made) < tokens:
        for skill in ("english", "story", "think/sums3", "tools/fixed", "tools/open", "lists/sort", "choice"):
            item = held_out(skill, number + 1, seed)[number]
            ids, session = list(item.prompt().encode(engine.tokenizer)), engine.session(1024)
            start = len(ids)
            session.sync(ids)
            while ids[-1] != engine.tokenizer.eos and len(ids) < start + 300:
                ids.append(session.argmax())
                session.append(ids[-1])
            made.append((ids, start))
        number += 1
    return made


def mistakes(tokens: int, seed: int) -> Iterator[Row]:
    """Yield the verdict on each mistake, then the shares named rightly and wrongly."""
    lengths: list[dict[str, list[int]]] = []
    texts: list[tuple[list[int], int]] = []
    for numerics in ("ds4", "exact"):
        with Engine.open(embedded_path(), numerics=numerics, threads=1) as engine:
            texts = texts or answers(engine, tokens, seed)
            with opened(dspark_path(), engine) as drafter:
                seen = [(observe(engine, drafter, ids), start) for ids, start in texts]
                lengths.append({
                    name: [n for text, start in seen for n in accepted(drafter, text, MISTAKES.get(name), start)]
                    for name in ("right", *MISTAKES)
                })  # fmt: skip
    theirs, ours = lengths
    names = {}
    for name, counts in theirs.items():
        reached = [sum(n > place for n in counts) for place in range(5)]
        names[name] = verdict(fit(Acceptance(len(counts), reached), ours, 5, SAME))
        mean = 1 + float(np.mean(ours[name]))
        yield row(f"tokens a pass, {name}", [mean], note=names[name])
    wrong = sum(says not in (name, "undecided", "lossless") for name, says in names.items())
    yield row("mistakes named", [sum(names[name] == name for name in MISTAKES)], f"of {len(MISTAKES)}", 7)
    yield row("mistakes named wrongly", [wrong], "", 0, "lower")


def main(argv: Sequence[str] | None = None) -> int:
    """Measure one part; print table or JSON."""
    parser = argparse.ArgumentParser(
        prog="benchmarks.drafts", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", choices=("acceptance", "mistakes", "speed"))
    add_json(parser)
    parser.add_argument("--model", metavar="FILE", help="model of the part speed")
    parser.add_argument("--questions", metavar="N", type=int, default=25, help="of each skill (25)")
    parser.add_argument("--tokens", metavar="N", type=int, default=128, help="of a round or of all answers (128)")
    parser.add_argument("--threads", metavar="N", type=int, default=1, help="of the part speed (1)")
    parser.add_argument("--rounds", metavar="N", type=int, default=5, help="(5)")
    args = parser.parse_args(argv)
    if args.part == "acceptance":
        rows = acceptance(args.questions, seed=21)
    elif args.part == "mistakes":
        rows = mistakes(args.tokens, seed=11)
    else:
        rows = speed(args.model or embedded_path(), args.tokens, args.rounds, args.threads)
    show(list(rows), "drafts", args.json)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
