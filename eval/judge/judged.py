"""Grade the answers of another program by a pack's rules: a log of ours, and where the two scores differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from ds4ref.console.common import check_output
from ds4ref.console.options import printable
from ds4ref.console.tables import Column, fitted
from ds4ref.errors import DataError, UsageError
from ds4ref.files import atomic_write, file_digest
from ds4ref.runs import scored, stats
from ds4ref.runs.provenance import now

from .. import runner
from ..log import SCHEMA, Log, LogHeader, Sample
from ..packs import Pack
from ..plan import Key, Settings
from ..prompt import key as right_answer
from ..report import WORDS
from ..scores import by_question
from .answers import Source
from .match import Matcher, Refused


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

    def contrasts(self) -> list[scored.Contrast]:
        """Return each of their scores and ours of the samples that have both, in alphabetical order."""
        return [self._contrast(name) for name in sorted({name for scores in self.theirs.values() for name in scores})]

    def _contrast(self, name: str) -> scored.Contrast:
        pairs = [
            (sum(self.theirs[s.key][name] for s in both) / len(both), sum(s.right for s in both) / len(both))
            for samples in by_question(self.log.done).values()
            if (both := [s for s in samples if name in self.theirs.get(s.key, {})])
        ]
        a, b = ([pair[side] for pair in pairs] for side in (0, 1))
        return scored.Contrast(name, stats.share_interval(a), stats.share_interval(b), stats.graded_interval(a, b),
                               stats.graded_p(a, b))  # fmt: skip

    def differing(self) -> list[Sample]:
        """Return the samples that any of their scores grades differently from ours."""
        return [s for s in self.log.done if any(v != float(s.right) for v in self.theirs.get(s.key, {}).values())]


def judge(paths: Sequence[Path], source: Source, pack: Pack, command: Sequence[str] = ()) -> Judged:
    """Grade the answers that are to questions of the pack; DataError if none is, with the first reasons."""
    files = ", ".join(map(str, paths))
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
    if not samples:
        raise DataError(f"{files}: no answer to a question of pack {pack.name}: {_first(refused)}")
    header = _header(paths, source, pack, samples.values(), len(refused), command)
    return Judged(source, Log(files, header, list(samples.values())), theirs, tuple(refused))


FIGURES = ("prompt_tokens", "cached_tokens", "tokens", "reasoning_tokens", "seconds", "finish", "close", "model",
           "error")  # fmt: skip


def _header(
    paths: Sequence[Path], source: Source, pack: Pack, samples: Any, refused: int, command: Sequence[str]
) -> LogHeader:
    """Return the header of a log whose settings nobody here knows: it cannot be resumed."""
    about = {"pack": pack.name, "version": pack.header.version, "digest": pack.digest, "canary": pack.header.canary}
    models = list(dict.fromkeys(sample.model for sample in samples if sample.model))
    target = {"kind": "judged", "name": ", ".join(models), "engine": source.program}
    judged = {"program": source.program, "file": ", ".join(path.name for path in paths),
              "digest": ", ".join(map(file_digest, paths)), "answer": source.field,
              "refused": refused, "notes": list(source.notes)}  # fmt: skip
    facts = {"created": now(), "command": list(command), "judged": judged}
    return LogHeader(SCHEMA, about, {}, max(s.epoch for s in samples), target, facts, list(pack.questions))


def write(found: Judged, path: str) -> None:
    """Write the log as a new file, atomically; UsageError if the file exists."""
    if Path(path).exists():
        raise UsageError(f"{path} exists")
    check_output(path)
    with atomic_write(Path(path).resolve()) as out:
        for entry in (found.log.header, *found.log.samples):
            out.write(msgspec.json.encode(entry) + b"\n")


def _first(refused: Sequence[tuple[str, str, str]]) -> str:
    return "; ".join(f"{where} ({printable(name, 60)}): {why}" for where, name, why in refused[:3])


# ------------------------------------------------------------------------------------------------------- in words


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
                     f"p {stats.p_said(contrast.p)}, n = {points.n}")  # fmt: skip
    if differing := found.differing():
        columns = (Column("question", least=8), Column("epoch", 2, right=True), Column("theirs", right=True),
                   Column("ours", least=6), Column("given", 2, least=6), Column("expected", 1, least=6),
                   Column("why", 3, least=12))  # fmt: skip
        parts += ["", fitted(columns, [_line(found, sample) for sample in differing], width)]
    return "\n".join(parts)


def _line(found: Judged, sample: Sample) -> list[str]:
    assert sample.grade is not None
    given = printable(" ".join(sample.grade.given.split()), 40) or "-"
    scores = found.theirs[sample.key]
    theirs = ", ".join(f"{printable(name, 40)} {value:g}" if len(scores) > 1 else f"{value:g}"
                       for name, value in sorted(scores.items()))  # fmt: skip
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
