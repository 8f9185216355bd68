"""The screen of ds4-eval with a target that plays a part: nothing is loaded, and nothing is measured.

python -m tests.eval.demo                        40 questions, 40 tokens a second
python -m tests.eval.demo --rate 500 --at-once 4 --epochs 3
python -m tests.eval.demo --hostile              answers that try to break a terminal
python -m tests.eval.demo --crash runner         how it ends when something fails (runner, widget, target, hang)
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from ds4ref.errors import TargetError
from ds4ref.eval.packs import Question
from ds4ref.eval.plan import Settings, keys
from ds4ref.eval.runner import Event, Runner
from ds4ref.eval.signals import Signals
from ds4ref.eval.tui import show
from ds4ref.targets import Request
from ds4ref.targets.answer import Delta

from .plausible import plausible
from .scripted import Scripted, Step, log_of, said

THOUGHTS = (
    "Let me look at what is asked. ",
    "There are two cases to keep apart.\n",
    "Modulo 7 the left side is 0, 1, 2 or 4. ",
    "So x = 3k + 1 for some k.\n\n",
    "Check with a small example: for n = 5 it gives 12. ",
    "That agrees. ",
    "Wait: the sign is wrong there, the second term comes with a minus.\n",
    "Then the sum telescopes. ",
    "Die Abschätzung von oben reicht nicht. ",
    "令 n = 2m，则有两种情形。",
    "\n    for (i = 0; i < n; i++)\n        s += a[i];\n",
)
HOSTILE = (
    "\x1b[2J\x1b[H\x1b[31mred\x1b[0m \x1b]0;title\x07 \x1bP+q\x1b\\ \x9b31m \x07\x08\x08\x7f ",
    "[bold]not bold[/bold] [/] [link=http://x]y[/link] [@click=app.quit]q[/] \\[x] ",
    "\ud83d lone surrogate, \u202eright to left\u202c, \ufeff\u200b\u2060, a\u0301\u0302\u0303\u0304\u0305\u0306, ",
    "\U0001f469\u200d\U0001f469\u200d\U0001f467 \U0001f1e9\U0001f1ea \U0001f44d\U0001f3fd \u2764\ufe0f 1\ufe0f\u20e3 ",
    "全角文字 ｶﾅ ไทย हिन्दी עברית العربية \tTab\r\nCRLF\rCR\x0bVT\x0cFF\u2028LS ",
    "</thi",
    "nk> is no tag here <thin",
    "k> </think> ",
    "x" * 300 + " ",
)


def script(
    questions: list[Question], rate: float, seed: int, *, parts: Sequence[str] = THOUGHTS, crash: str = "",
    prefill: float | None = None, thoughts: int | None = None,
) -> Callable[[Request], Iterator[Step]]:  # fmt: skip
    """Prefill, thoughts, an answer that is mostly right."""
    by_text = {q.question: q for q in questions}

    def play(request: Request) -> Iterator[Step]:
        user = request.prompt.user or ""
        question = next(q for text, q in by_text.items() if user.startswith(text))
        dice = random.Random(f"{seed} {question.id} {request.seed}")
        if crash == "hang":
            yield Delta(reasoning="I hang now.")
            time.sleep(3600)  # and hears of nothing
        yield 0.2 + dice.random() if prefill is None else prefill
        if crash == "target" or dice.random() < 0.04:
            yield TargetError("the connection was reset")
        count = dice.randint(8, 60) if thoughts is None else thoughts
        thought = "".join(dice.choice(parts) for _ in range(count))
        wrong = {"choice": "A", "integer": "42", "lines": "1"}[question.kind]
        kind = dice.choices(("right", "wrong", "missing", "ambiguous"), (76, 14, 5, 5))[0]
        end = {
            "right": f"Answer: {question.answer}", "wrong": f"Answer: {wrong}", "missing": "I cannot tell.",
            "ambiguous": f"Answer: {question.answer} or {wrong}",
        }[kind]  # fmt: skip
        yield from said(thought, f"The two cases agree, and **only one** value is left.\n\n{end}\n", 1 / rate)

    return play


def main() -> int:
    """Show, then say what came of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--questions", type=int, default=40)
    parser.add_argument("--rate", type=float, default=40.0, help="tokens a second of each answer")
    parser.add_argument("--at-once", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--prefill", type=float, help="seconds before the first token (a random second)")
    parser.add_argument("--thoughts", type=int, help="sentences thought per question (8 to 60)")
    parser.add_argument("--hostile", action="store_true")
    parser.add_argument("--leave", action="store_true", help="do not stay after the end")
    parser.add_argument("--crash", choices=("runner", "widget", "target", "hang"), default="")
    args = parser.parse_args()
    questions = plausible(args.questions)
    with tempfile.TemporaryDirectory() as folder, Signals() as signals:
        settings = Settings(tokens=4000)
        log = log_of(Path(folder) / "log.jsonl", questions, settings, args.epochs)
        play = script(
            questions, args.rate, args.seed, parts=HOSTILE if args.hostile else THOUGHTS,
            crash=args.crash, prefill=args.prefill, thoughts=args.thoughts,
        )  # fmt: skip
        target = Scripted(play)

        def make(listen: Callable[[Event], None]) -> Runner:
            if args.crash == "runner":
                listen = Failing(listen)
            return Runner(target, log, keys(questions, args.epochs), settings=settings, questions=questions,
                          listen=listen, at_once=args.at_once)  # fmt: skip

        if args.crash == "widget":
            from ds4ref.eval.tui.header import Header

            score = Failing(Header._score, 4)
            Header._score = lambda header: score(header)  # type: ignore[method-assign]
        try:
            show(make, questions, args.epochs, log, title="a play on scripted", signals=signals, stay=not args.leave)
        except BaseException as error:
            print(f"ended with {type(error).__name__}: {error}")
        done = [sample for sample in log.samples.values() if sample.grade is not None]
        print(f"{sum(s.right for s in done)} of {len(done)} right, {len(log.samples)} samples; signal {signals.number}")
        log.close()
    return signals.code


class Failing:
    """Fails when it is called for the ``after``-th time."""

    def __init__(self, inner: Callable[..., Any], after: int = 100):
        self.inner, self.after = inner, after

    def __call__(self, *args: Any) -> Any:
        self.after -= 1
        if self.after < 0:
            raise RuntimeError("failed on purpose")
        return self.inner(*args)


if __name__ == "__main__":
    sys.exit(main())
