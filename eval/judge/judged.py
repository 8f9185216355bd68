"""``ds4-eval judge FILE...``: grade another program's answers by a pack's rules; say where the two scores differ."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ds4ref.console.common import say
from ds4ref.console.flags import add
from ds4ref.console.options import parsed, printable
from ds4ref.console.tables import Column, fitted
from ds4ref.console.tool import parser
from ds4ref.errors import DataError, UsageError
from ds4ref.files import file_digest
from ds4ref.runs import stats, words
from ds4ref.runs.compare import Contrast
from ds4ref.runs.provenance import now

from .. import library, runner
from ..log import Log, Sample, header_of
from ..packs import Pack
from ..plan import Key, Settings
from ..prompt import key as right_answer
from ..regrade import write
from ..report import WORDS, report
from ..scores import by_question, summary
from ..view import width
from .match import Matcher, Refused
from .sources import Source, read_all

PROG = "ds4-eval judge"
SHOWN = 20
"""Largest number of refused answers that are named; --json has all."""


def judge_files(argv: Sequence[str]) -> int:
    """Run ``ds4-eval judge FILE...``; return the exit code."""
    made = parser(
        PROG, "Grade the answers in another program's log by the rules of a pack: logs of inspect_ai, samples of\n"
        "lm-evaluation-harness, traces of ds4. Answers to questions outside the pack are refused by name.",
        "FILE... --pack NAME [-o LOG.jsonl] [--json]", "logs/2026-01-31_task.json --pack ds4ref -o judged.jsonl",
        "samples_task_2026-01-31T09-30-00.jsonl --pack nano", "trace.txt --pack ds4_eval.c",
    )  # fmt: skip
    made.epilog = (made.epilog or "") + "\n\nexit codes: 0 done, 1 if an answer was refused, 2 usage"
    made.add_argument("files", metavar="FILE", nargs="*", help="logs of other programs")
    add(made, "--pack", help=f"{', '.join(library.names())}, or a file of questions")
    add(made, "--output", metavar="LOG.jsonl", help="write the answers and grades as a log of ds4-eval")
    add(made, "--json")
    args = parsed(made, argv)
    if args is None:
        return 0
    if not args.files or not args.pack:
        raise UsageError("judge needs a file and --pack")
    paths, pack = [Path(file) for file in args.files], library.load(args.pack)
    found = judge(paths, read_all(paths), pack, [PROG, *argv])
    if args.output is not None:
        write(args.output, found.log.header, found.log.samples)
    if args.json:
        print(json.dumps({**document(found, args.output), "summary": summary(found.log).to_json()}, ensure_ascii=False))
    else:
        print(f"{report(found.log, width())}\n\n{text(found, width())}")
        if args.output is not None:
            print(f"written to {args.output}")
    for where, name, why in found.refused[:SHOWN]:
        say(PROG, f"refused: {where} ({printable(name, 60)}): {why}")
    if len(found.refused) > SHOWN:
        say(PROG, f"refused: {len(found.refused) - SHOWN} more")
    return 1 if found.refused else 0


@dataclass(frozen=True)
class Judged:
    """Answers of another program, graded.

    source   where they came from
    log      the log of ours, not written
    theirs   the program's own scores, by sample and by their names
    refused  (place in the file, the program's id, reason) of answers that cannot be judged
    """

    source: Source
    log: Log
    theirs: dict[Key, Mapping[str, float]]
    refused: tuple[tuple[str, str, str], ...]

    def contrasts(self) -> list[Contrast]:
        """Return each of their scores and ours of the samples that have both, in alphabetical order."""
        return [self._contrast(name) for name in sorted({name for scores in self.theirs.values() for name in scores})]

    def _contrast(self, name: str) -> Contrast:
        pairs = [
            (sum(self.theirs[s.key][name] for s in both) / len(both), sum(s.right for s in both) / len(both))
            for samples in by_question(self.log.done).values()
            if (both := [s for s in samples if name in self.theirs.get(s.key, {})])
        ]
        a, b = ([pair[side] for pair in pairs] for side in (0, 1))
        return Contrast(name, stats.share_interval(a), stats.share_interval(b), stats.graded_interval(a, b),
                               stats.graded_p(a, b))  # fmt: skip

    def differing(self) -> list[Sample]:
        """Return the samples that any of their scores grades differently from ours."""
        return [s for s in self.log.done if any(v != float(s.right) for v in self.theirs.get(s.key, {}).values())]


FIGURES = ("prompt_tokens", "cached_tokens", "tokens", "reasoning_tokens", "seconds", "finish", "close", "model",
           "error")  # fmt: skip


def judge(paths: Sequence[Path], source: Source, pack: Pack, command: Sequence[str] = ()) -> Judged:
    """Grade the answers that are to questions of the pack; DataError if none is, with the first reasons."""
    matcher, settings = Matcher(pack.questions), Settings()
    samples: dict[Key, Sample] = {}
    theirs, refused = {}, []
    for answer in source.answers:
        try:
            question, order = matcher.find(answer)
            key = Key(answer.epoch, question.id)
            if key in samples:
                raise Refused(f"another answer to {question.id} in epoch {answer.epoch}")
        except Refused as why:
            refused.append((answer.where, answer.id, str(why)))
            continue
        sample = Sample(
            question.id, answer.epoch, settings.digest(question), "failed" if answer.error else "done",
            right_answer(question, order), answer.started, order, answer.prompt, answer.output, answer.reasoning,
            **{name: getattr(answer, name) for name in FIGURES},
        )  # fmt: skip
        if not answer.error:
            runner.regrade(sample, question)
            theirs[key] = answer.theirs
        samples[key] = sample
    files = ", ".join(map(str, paths))
    if not samples:
        first = "; ".join(f"{where} ({printable(name, 60)}): {why}" for where, name, why in refused[:3])
        raise DataError(f"{files}: no answer to a question of pack {pack.name}: {first}")
    models = ", ".join(dict.fromkeys(sample.model for sample in samples.values() if sample.model))
    about = {"program": source.program, "file": ", ".join(path.name for path in paths),
             "digest": ", ".join(map(file_digest, paths)), "answer": source.field,
             "refused": len(refused), "notes": list(source.notes)}  # fmt: skip
    header = header_of(pack, settings, max(key.epoch for key in samples),
                       {"kind": "judged", "name": models, "engine": source.program},
                       {"created": now(), "command": list(command), "judged": about})  # fmt: skip
    header.settings = {}  # nobody here knows them, and the log cannot be resumed
    return Judged(source, Log(files, header, list(samples.values())), theirs, tuple(refused))


def text(found: Judged, width: int) -> str:
    """Say where the answers came from, and how their scores and ours differ."""
    parts = [f"answers of {found.source.program} (field {found.source.field})"]
    parts += [f"note: {note}" for note in found.source.notes]
    contrasts = found.contrasts()
    if not contrasts:
        return "\n".join([*parts, "it has no scores of its own"])
    for contrast in contrasts:
        points = contrast.points
        span = f" ({points.low:+.1f} to {points.high:+.1f})" if points.known else ""
        parts.append(f"its own score ({printable(contrast.name, 80)}): {100 * contrast.a.estimate:.1f} %, ours "
                     f"{100 * contrast.b.estimate:.1f} %: {points.estimate:+.1f} points{span}, "
                     f"p {words.probability(contrast.p)}, n = {points.n}")  # fmt: skip
    if differing := found.differing():
        columns = (Column("question", least=8), Column("epoch", 2, right=True), Column("theirs", right=True),
                   Column("ours", least=6), Column("given", 2, least=6), Column("expected", 1, least=6),
                   Column("why", 3, least=12))  # fmt: skip
        parts += ["", fitted(columns, [_line(found, sample) for sample in differing], width)]
    return "\n".join(parts)


def _line(found: Judged, sample: Sample) -> list[str]:
    assert sample.grade is not None
    given = printable(" ".join(sample.grade.given.split()), 40) or "-"
    scores = sorted(found.theirs[sample.key].items())
    theirs = ", ".join(f"{printable(name, 40)} {value:g}" if len(scores) > 1 else f"{value:g}"
                       for name, value in scores)  # fmt: skip
    return [sample.id, str(sample.epoch), theirs, WORDS[sample.grade.outcome], given,
            sample.expected, printable(sample.grade.why, 200)]  # fmt: skip


def document(found: Judged, written: str | None) -> dict[str, Any]:
    """Return the same as plain data."""
    return {
        **found.log.header.facts["judged"], "written": written,
        "refused": [{"where": where, "id": name, "why": why} for where, name, why in found.refused],
        "contrasts": {contrast.name: contrast.as_json() for contrast in found.contrasts()},
        "differing": [
            {"id": s.id, "epoch": s.epoch, "theirs": dict(found.theirs[s.key]), "ours": s.grade.outcome,
             "why": s.grade.why}
            for s in found.differing() if s.grade is not None
        ],
    }  # fmt: skip
