"""Read and write ds4's own vector files: ``official.vec`` and its fetcher's JSON captures (docs/reference/vectors.md).

The API behind them reported 0 for the chosen token and -9999 for the others: they hold tokens, but no distribution.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ds4ref.errors import DataError
from ds4ref.text.protocol import EOS

from .schema import NAME, RecordedCase, Repetition, StepRecord, TokenRecord

HEADER = (
    "# ds4-official-logprob-vectors-v1",
    "# case <id> <ctx> <steps> <prompt path>",
    "# step <index> <chosen token, hex> <alternatives>",
    "# top <token, hex> <logprob>",
)
JSON_SCHEMA = "ds4-official-logprobs-v1"
MANIFEST_SCHEMA = "ds4-test-vector-manifest-v1"
MAX_ID, MAX_PATH, MAX_STEPS, MAX_TOP, MAX_TOKEN, MAX_LINE = 95, 511, 16, 32, 128, 2048
DEGENERATE, NOTHING = -1000.0, -9999.0
"""DEGENERATE: log probabilities at or below it mean "none"; NOTHING: the value that the API itself sends for "none"."""

KNOWN_DIVERGENCE = {
    "long_memory_archive": "the public API and ds4's graph disagree after the FP4 indexer change (ds4's own note)",
}
"""Cases of ds4's set on which correct engines are expected to differ."""

CTX = 16384
SET_CTX = {"short_code_completion": 4096, "short_reasoning_plain": 4096}
"""Context sizes of ds4's own cases, which its captures do not contain; all other cases have CTX."""


@dataclass(frozen=True)
class VecCase:
    """One case of an official.vec; each of ``steps`` is (chosen bytes, [(bytes, logprob)])."""

    id: str
    ctx: int
    prompt_path: str
    steps: tuple[tuple[bytes, tuple[tuple[bytes, float], ...]], ...]

    def repetition(self) -> Repetition:
        """Convert the steps to a recorded answer."""
        steps = []
        for chosen, top in self.steps:
            alternatives = [TokenRecord(list(raw), logprob) for raw, logprob in top]
            own = next((t.logprob for t in alternatives if t.raw == chosen), None)
            steps.append(StepRecord(TokenRecord(list(chosen), own), alternatives))
        return Repetition(steps, "length")

    @property
    def prompt_file(self) -> Path:
        """Return the path of the prompt as written in the file."""
        return Path(self.prompt_path)


class _Lines:
    """Lines of a .vec without comments and blank lines, with their numbers."""

    def __init__(self, data: bytes, where: str):
        self.where, self.number = where, 0
        self._lines = data.split(b"\n")

    def next(self) -> list[str] | None:
        """Return the words of the next line, None at the end."""
        while self.number < len(self._lines):
            line = self._lines[self.number]
            self.number += 1
            if len(line) > MAX_LINE:
                raise self.error(f"a line of {len(line)} bytes; the maximum is {MAX_LINE}")
            text = line.strip(b" \t\r\n\v\f")
            if text and not text.startswith(b"#"):
                try:
                    return text.decode("utf-8").split()
                except UnicodeDecodeError:
                    raise self.error("not UTF-8") from None
        return None

    def error(self, why: str) -> DataError:
        return DataError(f"{self.where}: line {self.number}: {why}")


def read_vec(path: str) -> list[VecCase]:
    """Read every case of the file; DataError names an invalid line."""
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from None
    lines, cases = _Lines(data, path), []
    while (words := lines.next()) is not None:
        if words[0] != "case" or len(words) != 5:
            raise lines.error('expected "case ID CTX STEPS PROMPT"')
        cases.append(_case(lines, words))
    if not cases:
        raise DataError(f"{path}: no case")
    if len({case.id for case in cases}) != len(cases):
        raise DataError(f"{path}: a case is listed twice")
    return cases


def _case(lines: _Lines, words: list[str]) -> VecCase:
    _, name, ctx, count, prompt = words
    if len(name) > MAX_ID or not NAME.fullmatch(name):
        raise lines.error(f"case id {name[:40]!r} is malformed")
    if len(prompt) > MAX_PATH:
        raise lines.error(f"a prompt path has at most {MAX_PATH} characters")
    steps: list[tuple[bytes, tuple[tuple[bytes, float], ...]]] = []
    wanted = _number(lines, count, 1, MAX_STEPS, "steps")
    while (words_ := lines.next()) is not None and words_[0] != "end":
        if words_[0] != "step" or len(words_) != 4:
            raise lines.error('expected "step INDEX HEX ALTERNATIVES" or "end"')
        if _number(lines, words_[1], 0, MAX_STEPS - 1, "index") != len(steps):
            raise lines.error(f"step {words_[1]}, expected {len(steps)}")
        chosen = _hex(lines, words_[2])
        steps.append((chosen, _tops(lines, _number(lines, words_[3], 0, MAX_TOP, "alternatives"))))
    if words_ is None:
        raise lines.error(f'"end" of case {name} is missing')
    if len(steps) != wanted:
        raise lines.error(f"case {name} has {len(steps)} steps, but its header says {wanted}")
    return VecCase(name, _number(lines, ctx, 1, 2**31 - 1, "ctx"), prompt, tuple(steps))


def _tops(lines: _Lines, count: int) -> tuple[tuple[bytes, float], ...]:
    alternatives = []
    for _ in range(count):
        words = lines.next()
        if words is None or words[0] != "top" or len(words) != 3:
            raise lines.error('expected "top HEX LOGPROB"')
        if not re.fullmatch(r"-?[0-9]+(\.[0-9]*)?([eE][+-]?[0-9]+)?", words[2]):
            raise lines.error(f"{words[2][:40]!r} is not a log probability")
        alternatives.append((_hex(lines, words[1]), float(words[2])))
    return tuple(alternatives)


def _hex(lines: _Lines, text: str) -> bytes:
    if not re.fullmatch(r"([0-9a-f]{2})+", text) or len(text) > 2 * MAX_TOKEN:
        raise lines.error(f"a token is 1 to {MAX_TOKEN} bytes as lowercase hex, not {text[:40]!r}")
    return bytes.fromhex(text)


def _number(lines: _Lines, text: str, lo: int, hi: int, name: str) -> int:
    if not re.fullmatch(r"[0-9]{1,10}", text) or not lo <= int(text) <= hi:
        raise lines.error(f"{name} must be {lo} to {hi}, not {text[:40]!r}")
    return int(text)


def write_vec(cases: Sequence[VecCase]) -> bytes:
    """Return the file's bytes; alternatives without a value are dropped, as ds4's generator does."""
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
    """Convert the first repetition of a recorded case to a case of official.vec."""
    steps = tuple(
        (step.token.raw, tuple((t.raw, t.logprob) for t in step.top if t.logprob is not None))
        for step in case.repetitions[0].steps
    )
    return VecCase(case.id, ctx, prompt_path, steps)


# --------------------------------------------------------------------------------------------------- JSON captures


@dataclass(frozen=True)
class Capture:
    """One official JSON capture.

    repetition  the answer
    degenerate  whether its log probabilities are placeholders (0 and -9999)
    ctx         context size in tokens, None if unknown
    about       all fields of the file but the steps, unchanged
    """

    id: str
    prompt: str
    model: str
    repetition: Repetition
    degenerate: bool
    system: str = ""
    ctx: int | None = None
    about: dict[str, Any] = field(default_factory=dict)


def is_manifest(folder: str) -> bool:
    """Return whether the folder's manifest.json was written by ds4's fetcher."""
    try:
        manifest = json.loads(Path(folder, "manifest.json").read_bytes())
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(manifest, dict) and manifest.get("schema") == MANIFEST_SCHEMA


def read_manifest(folder: str) -> list[str]:
    """Return the JSON captures listed in the manifest of ds4's fetcher; files that it does not list are ignored."""
    path = Path(folder, "manifest.json")
    try:
        names = [entry["official_file"] for entry in json.loads(path.read_bytes())["prompts"]]
        files = [Path(folder, name) for name in names]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path}: malformed manifest: {type(error).__name__}: {error}") from None
    if not files or any(name.startswith("/") or ".." in Path(name).parts for name in names):
        raise DataError(f"{path}: no case, or one outside the folder")
    return [str(file) for file in files]


def read_capture(path: str) -> Capture:
    """Read a file of schema ``ds4-official-logprobs-v1``; DataError if it is malformed."""
    try:
        data = json.loads(Path(path).read_bytes())
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is not JSON: {error}") from None
    try:
        if data["schema"] != JSON_SCHEMA:
            raise DataError(f"{path}: schema is {data['schema']!r}, expected {JSON_SCHEMA!r}")
        steps, values = [], []
        for step in data["steps"]:
            top = [(_bytes(t["token"]), float(t["logprob"])) for t in step["top_logprobs"]]
            values += [logprob for _, logprob in top[1:]]
            usable = [TokenRecord(list(raw), logprob) for raw, logprob in top if logprob > DEGENERATE and raw]
            rest = [TokenRecord(list(raw), logprob) for raw, logprob in top if not (logprob > DEGENERATE and raw)]
            steps.append(StepRecord(TokenRecord(list(_bytes(step["token"])), float(step["logprob"])), usable, rest))
        usage = data.get("usage") or {}
        repetition = Repetition(
            steps, str(data.get("finish_reason") or ""), str(data["model"]), str(data.get("created_at") or ""),
            usage.get("prompt_tokens"), usage.get("completion_tokens"), usage.get("prompt_cache_hit_tokens"),
        )  # fmt: skip
        degenerate = bool(values) and all(value <= DEGENERATE for value in values)
        messages = (data.get("request") or {}).get("messages") or []
        system = next((str(m["content"]) for m in messages if m.get("role") == "system"), "")
        ctx = data.get("ctx")
        about = {key: value for key, value in data.items() if key != "steps"}
        return Capture(str(data["id"]), str(data["prompt"]), str(data["model"]), repetition, degenerate, system,
                       ctx if type(ctx) is int and ctx > 0 else None, about)  # fmt: skip
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise DataError(f"{path}: malformed capture: {type(error).__name__}: {error}") from None


def contexts(path: str) -> dict[str, int]:
    """Return context sizes by case id from the official.vec in ``path``'s folder or one of the two above it.

    Empty if there is none that can be read.
    """
    start = Path(path).resolve()
    for folder in (start, start.parent, start.parent.parent):
        file = folder / "official.vec"
        if file.is_file():
            try:
                return {case.id: case.ctx for case in read_vec(str(file))}
            except DataError:
                return {}
    return {}


def ctx_of(recording: Capture, beside: dict[str, int]) -> int:
    """Return a captured case's context size: its own, else from the official.vec beside it, else from ds4's set."""
    return recording.ctx or beside.get(recording.id) or SET_CTX.get(recording.id, CTX)


@dataclass(frozen=True)
class RequestParameters:
    """Request parameters to write into a capture for a case that was not read from one."""

    max_tokens: int
    top_logprobs: int
    system: str = ""
    ctx: int = CTX


def write_capture(
    case: RecordedCase,
    prompt: str,
    model: str,
    endpoint: str,
    parameters: RequestParameters,
    about: dict[str, Any] | None = None,
) -> bytes:
    """Return a JSON capture of a case's first repetition as bytes.

    ``about``: fields of the capture that the case was read from; its request, usage and message stay unchanged.
    """
    repetition = case.repetitions[0]

    def token(t: TokenRecord) -> dict[str, Any]:
        return {"text": t.raw.decode("utf-8", "replace"), "bytes": t.data}

    def value(t: TokenRecord) -> float:
        return NOTHING if t.logprob is None else t.logprob

    steps = [
        {
            "step": i, "token": token(step.token), "logprob": step.token.logprob or 0.0,
            "top_logprobs": [{"token": token(t), "logprob": value(t)}
                             for t in sorted([*step.top, *step.rest], key=lambda t: -value(t))],
        }
        for i, step in enumerate(repetition.steps)
    ]  # fmt: skip
    system = [{"role": "system", "content": parameters.system}] if parameters.system else []
    request = {"model": model, "temperature": 0, "max_tokens": parameters.max_tokens, "logprobs": True,
               "top_logprobs": parameters.top_logprobs, "thinking": {"type": "disabled"},
               "messages": [*system, {"role": "user", "content": prompt}]}  # fmt: skip
    completion = repetition.completion_tokens
    usage = {"prompt_tokens": repetition.prompt_tokens,
             "completion_tokens": len(steps) if completion is None else completion}  # fmt: skip
    if repetition.prompt_tokens is not None:
        usage["total_tokens"] = repetition.prompt_tokens + (usage["completion_tokens"] or 0)
    if repetition.cached_tokens is not None:
        usage["prompt_cache_hit_tokens"] = repetition.cached_tokens
    ends = {EOS.encode(), EOS.replace("\uff5c", "\uff5c\uff5c").encode()}  # the API's message ends before the end token
    content = b"".join(s.token.raw for s in repetition.steps if s.token.raw not in ends).decode("utf-8", "replace")
    header: dict[str, Any] = {
        "schema": JSON_SCHEMA, "source": "ds4ref", "model": model, "endpoint": endpoint,
        "created_at": repetition.created or time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "id": case.id,
        "kind": "short" if len(prompt) < 1000 else "long", "prompt": prompt, "request": request, "usage": usage,
        "finish_reason": repetition.finish, "message": {"role": "assistant", "content": content},
        "logits_available": False, "ctx": parameters.ctx,
    }  # fmt: skip
    whole = {**header, **(about or {}), "ctx": parameters.ctx, "steps": steps}
    try:
        return (json.dumps(whole, indent=2, ensure_ascii=False) + "\n").encode()
    except UnicodeEncodeError:  # lone surrogates, from bytes of a prompt that are no UTF-8, survive only as escapes
        return (json.dumps(whole, indent=2) + "\n").encode()


def _bytes(token: dict[str, Any]) -> bytes:
    raw = token.get("bytes")
    return bytes(raw) if raw is not None else token["text"].encode("utf-8", "surrogateescape")
