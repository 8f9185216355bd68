"""Read and write ds4's own vector file, ``official.vec`` (docs/reference/vectors.md).

The API from which ds4's vectors were recorded gave log probability 0 to the chosen token and -9999 to the others, so
they contain tokens, but no distribution.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ds4ref.errors import DataError

from .schema import RecordedCase, Repetition, StepRecord, TokenRecord

HEADER = (
    "# ds4-official-logprob-vectors-v1",
    "# case <id> <ctx> <steps> <prompt path>",
    "# step <index> <chosen token, hex> <alternatives>",
    "# top <token, hex> <logprob>",
)
MAX_PATH, MAX_STEPS, MAX_TOP, MAX_LINE = 511, 16, 32, 2048
DEGENERATE = -1000.0
"""Log probabilities at or below this mean "no value"."""

KNOWN_DIVERGENCE = {
    "long_memory_archive": "the public API and ds4's graph disagree after the FP4 indexer change (ds4's own note)",
}
"""Cases of ds4's set on which correct engines are expected to differ."""

CTX = 16384
"""Context size in tokens of a prompt that does not state one: that of most of ds4's cases."""

Steps = tuple[tuple[bytes, tuple[tuple[bytes, float], ...]], ...]
_HEX, _NUMBER = r"((?:[0-9a-f]{2}){1,128})", r"([0-9]{1,10})"
_LINES = {
    "case": rf"case ([A-Za-z0-9][A-Za-z0-9_.-]{{0,94}}) {_NUMBER} {_NUMBER} (\S{{1,{MAX_PATH}}})",
    "step": rf"step {_NUMBER} {_HEX} {_NUMBER}",
    "top": rf"top {_HEX} (-?[0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?)",
    "end": "end",
}
_FORMS = {
    "case": "case ID CTX STEPS PROMPT", "step": "step INDEX HEX ALTERNATIVES", "top": "top HEX LOGPROB", "end": "end",
}  # fmt: skip


@dataclass(frozen=True)
class VecCase:
    """One case of an official.vec: a prompt and the expected answer.

    Each of ``steps`` is (bytes of the chosen token, ((bytes, log probability) of each alternative)).
    """

    id: str
    ctx: int
    prompt_path: str
    steps: Steps

    def repetition(self) -> Repetition:
        """Return the steps in the form of a recorded answer."""
        steps = []
        for chosen, top in self.steps:
            alternatives = [TokenRecord(list(raw), logprob) for raw, logprob in top]
            own = next((t.logprob for t in alternatives if t.raw == chosen), None)
            steps.append(StepRecord(TokenRecord(list(chosen), own), alternatives))
        return Repetition(steps, "length")


class _Reader:
    """Reader of the lines of a .vec file, which skips comments and blank lines."""

    def __init__(self, data: bytes, where: str):
        self.where, self.number, self._lines = where, 0, data.split(b"\n")

    def next(self, kind: str) -> tuple[str, ...] | None:
        """Return the fields of the next line; None at the end of the file.

        ``kind``: "case", "step", "top" or "end". DataError for a line of another kind, or if the file ends where a line
        other than a case must follow.
        """
        while self.number < len(self._lines):
            line = self._lines[self.number]
            self.number += 1
            if len(line) > MAX_LINE:
                raise self.error(f"a line of {len(line)} bytes; the maximum is {MAX_LINE}")
            text = b" ".join(line.split()).decode("utf-8", "backslashreplace")
            if text and not text.startswith("#"):
                match = re.fullmatch(_LINES[kind], text)
                if match is None:
                    raise self.error(f'expected "{_FORMS[kind]}"')
                return match.groups()
        if kind == "case":
            return None
        raise self.error(f'"{_FORMS[kind]}" is missing')

    def count(self, text: str, low: int, high: int, name: str) -> int:
        """Return ``text`` as a number; DataError, which calls it ``name``, if it is not ``low`` to ``high``."""
        if not low <= int(text) <= high:
            raise self.error(f"{name} must be {low} to {high}, not {text}")
        return int(text)

    def error(self, why: str) -> DataError:
        return DataError(f"{self.where}: line {self.number}: {why}")


def read_vec(path: str) -> list[VecCase]:
    """Read every case of the file; DataError names an invalid line."""
    try:
        reader, cases = _Reader(Path(path).read_bytes(), path), []
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from None
    while (head := reader.next("case")) is not None:
        name, ctx, count, prompt = head
        size = reader.count(ctx, 1, 2**31 - 1, "ctx")
        steps = tuple(_step(reader, index) for index in range(reader.count(count, 1, MAX_STEPS, "steps")))
        reader.next("end")
        cases.append(VecCase(name, size, prompt, steps))
    if not cases:
        raise DataError(f"{path}: no case")
    if len({case.id for case in cases}) != len(cases):
        raise DataError(f"{path}: a case is listed twice")
    return cases


def _step(reader: _Reader, index: int) -> tuple[bytes, tuple[tuple[bytes, float], ...]]:
    number, chosen, count = reader.next("step") or ()
    if int(number) != index:
        raise reader.error(f"step {number}, expected {index}")
    lines = [reader.next("top") or () for _ in range(reader.count(count, 0, MAX_TOP, "alternatives"))]
    return bytes.fromhex(chosen), tuple((bytes.fromhex(raw), float(logprob)) for raw, logprob in lines)


def write_vec(cases: Sequence[VecCase]) -> bytes:
    """Return an official.vec with these cases as bytes; alternatives without a value are left out, as by ds4.

    DataError for a case that the format cannot hold.
    """
    out = list(HEADER)
    for case in cases:
        if len(case.steps) > MAX_STEPS or not case.steps:
            raise DataError(f"case {case.id}: official.vec holds 1 to {MAX_STEPS} steps, not {len(case.steps)}")
        if re.search(r"\s", case.prompt_path) or len(case.prompt_path) > MAX_PATH:
            raise DataError(f"case {case.id}: the prompt path cannot be written: {case.prompt_path[:60]!r}")
        out += ["", f"case {case.id} {case.ctx} {len(case.steps)} {case.prompt_path}"]
        for index, (chosen, top) in enumerate(case.steps):
            usable = [(raw, lp) for raw, lp in top if lp > DEGENERATE and raw][:MAX_TOP]
            out.append(f"step {index} {chosen.hex()} {len(usable)}")
            out += [f"top {raw.hex()} {logprob:.9g}" for raw, logprob in usable]
        out.append("end")
    return ("\n".join(out) + "\n").encode()


def from_case(case: RecordedCase, ctx: int, prompt_path: str) -> VecCase:
    """Convert the first answer of a recorded case to a case of official.vec.

    ``ctx``: context size in tokens; ``prompt_path``: path of the prompt's file, as the .vec will state it.
    """
    steps = tuple(
        (step.token.raw, tuple((t.raw, t.logprob) for t in step.top if t.logprob is not None))
        for step in case.repetitions[0].steps
    )
    return VecCase(case.id, ctx, prompt_path, steps)
