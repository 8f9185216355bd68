"""Read answers out of other programs' logs.

inspect_ai: a .json file, or the .eval archive of one JSON file a sample, whose Zstandard Python reads from 3.14 on.
lm-evaluation-harness: logged samples (``--log_samples``). The answer is what the model said (``resps``), not what a
filter made of it. A document that was graded with several filters is logged once for each: its scores have the names
of lm-evaluation-harness's results ("exact_match,strict-match").
ds4: a trace (``--trace FILE``) has fields and texts, each text with its length in bytes, so that nothing a model says
can look like its end. A question that was asked twice has its last answer.
"""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ds4ref.errors import DataError


@dataclass(frozen=True)
class Answer:
    """An answer in another program's log.

    where      its place in the file, for messages
    id, epoch  the program's own name of the question, and which time it was asked
    asked      texts one of which must be the question's own, or its whole prompt
    prompt     what was sent
    output     the answer; with its thinking, if the program does not keep it apart
    reasoning  thinking that is kept apart
    finish     why it ended: "stop", "length", ..., "" if the program does not say
    close      how thinking ended, as in ``log.Sample``
    error      why there is no answer, "" if there is one
    refused    why the record cannot be judged, "" if it can
    theirs     the program's own scores from 0 to 1, by their names
    """

    where: str
    id: str
    epoch: int = 1
    asked: tuple[str, ...] = ()
    prompt: str = ""
    output: str = ""
    reasoning: str = ""
    finish: str = ""
    close: str = ""
    error: str = ""
    refused: str = ""
    theirs: Mapping[str, float] = field(default_factory=dict)
    model: str = ""
    started: str = ""
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    tokens: int | None = None
    reasoning_tokens: int | None = None
    seconds: float = 0.0


@dataclass(frozen=True)
class Source:
    """A file of answers.

    program  the program that made it, with its version if the file has it
    field    the field that is taken as the answer
    answers  what is in it, in its order
    notes    what the file does not tell, or lacks
    """

    program: str
    field: str
    answers: Sequence[Answer]
    notes: tuple[str, ...] = ()


def read_all(paths: Sequence[Path]) -> Source:
    """Read files of answers as one; with several, names of scores begin with the file's name."""
    found = [read(path) for path in paths]
    if len(found) == 1:
        return found[0]
    answers = [
        replace(answer, where=f"{path.name}, {answer.where}",
                theirs={f"{path.stem}: {score}": value for score, value in answer.theirs.items()})
        for path, source in zip(paths, found, strict=True) for answer in source.answers
    ]  # fmt: skip
    programs, fields = (", ".join(dict.fromkeys(getattr(s, name) for s in found)) for name in ("program", "field"))
    return Source(programs, fields, answers, tuple(dict.fromkeys(note for source in found for note in source.notes)))


def read(path: Path) -> Source:
    """Read a file of answers; DataError if it is none, or empty, or damaged."""
    try:
        data = path.read_bytes()
        if data.startswith(b"# ds4-eval trace"):
            source = _trace(data)
        elif data.startswith(b"{") and b'"doc_id"' in data[:4096]:
            source = _samples(data)
        elif data.startswith((b"{", b"PK\3\4")):
            source = _inspect(_archive(path) if data.startswith(b"PK") else json.loads(data))
        elif data:
            raise ValueError("not a log of inspect_ai, samples of lm-evaluation-harness or a trace of ds4")
        else:
            raise ValueError("empty")
    except OSError as error:
        raise DataError(f"{path}: {error.strerror or error}") from None
    except NotImplementedError:
        raise DataError(f"{path}: compressed with Zstandard, which this Python cannot read: convert it with inspect "
                        "log convert --to json") from None  # fmt: skip
    except (KeyError, TypeError, AttributeError, ValueError, RecursionError, zipfile.BadZipFile) as error:
        raise DataError(f"{path}: damaged, cut off, or of another program: {error}") from None
    if not source.answers:
        raise DataError(f"{path}: no answers" + "".join(f"; {note}" for note in source.notes))
    return source


# ----------------------------------------------------------------------------------------------------- inspect_ai

FINISHES = {"max_tokens": "length", "model_length": "length", "unknown": ""}
_WORDS = {"c": 1.0, "i": 0.0, "p": 0.5, "n": 0.0, "yes": 1.0, "true": 1.0, "no": 0.0, "false": 0.0}
"""Numbers for words, as inspect_ai's own metrics take them."""


def _archive(path: Path) -> dict[str, Any]:
    with zipfile.ZipFile(path) as archive:
        names = [name for name in archive.namelist() if name.startswith("samples/")]
        header, *samples = (json.loads(archive.read(name)) for name in ("header.json", *names))
        return {**header, "samples": samples}


def _inspect(log: dict[str, Any]) -> Source:
    about = log["eval"]
    if log["version"] != 2:
        raise ValueError(f"version {log['version']} of inspect_ai's logs, not 2")
    notes = () if log.get("status") == "success" else (f"the run's status is {log.get('status')}",)
    program = f"inspect_ai {(about.get('packages') or {}).get('inspect_ai', '')}".strip()
    answers = [_inspected(sample, str(about.get("model") or "")) for sample in log["samples"]]
    return Source(program, "output.choices[0].message.content", answers, notes)


def _inspected(sample: dict[str, Any], model: str) -> Answer:
    name, epoch = str(sample["id"]), int(sample.get("epoch", 1))
    sample = _resolved(sample, sample.get("attachments") or {})
    sent = [_text(m["content"]) for m in sample.get("messages") or () if m["role"] in ("system", "user")]
    asked, output = sample["input"], sample.get("output") or {}
    asked = _text(asked if isinstance(asked, str) else asked[-1]["content"])
    choices, usage, error = output.get("choices") or [], output.get("usage") or {}, sample.get("error") or {}
    begun = Answer(
        f"sample {name}, epoch {epoch}", name, epoch, (asked,), "\n\n".join(sent),
        theirs=_scores(sample.get("scores") or {}),
        model=str(output.get("model") or model), started=str(sample.get("started_at") or ""),
        prompt_tokens=usage.get("input_tokens"), cached_tokens=usage.get("input_tokens_cache_read"),
        tokens=usage.get("output_tokens"), reasoning_tokens=usage.get("reasoning_tokens"),
        seconds=float(sample.get("total_time") or 0), error=str(error.get("message") or output.get("error") or ""),
    )  # fmt: skip
    if not choices:
        return begun if begun.error else replace(begun, error="no answer in the log")
    message, finish = choices[0]["message"], str(choices[0].get("stop_reason") or "")
    if message.get("tool_calls"):
        return replace(begun, refused="the answer is a tool call")
    content = message["content"]
    parts = [] if isinstance(content, str) else content
    reasoning = "".join(str(part.get("reasoning") or "") for part in parts if part["type"] == "reasoning")
    return replace(begun, output=_text(content), reasoning=reasoning, finish=FINISHES.get(finish, finish))


def _text(content: str | list[dict[str, Any]]) -> str:
    """Join the texts of a message; what is no text cannot have been a question of a pack."""
    return content if isinstance(content, str) else "".join(p["text"] for p in content if p["type"] == "text")


def _resolved(value: Any, attachments: dict[str, str]) -> Any:
    """Put attachments back where they were taken out."""
    if isinstance(value, dict):
        return {key: _resolved(inner, attachments) for key, inner in value.items() if key not in ("events", "store")}
    if isinstance(value, list):
        return [_resolved(inner, attachments) for inner in value]
    if isinstance(value, str) and value.startswith("attachment://"):
        return attachments.get(value.removeprefix("attachment://"), value)
    return value


def _scores(scores: dict[str, Any]) -> dict[str, float]:
    """Return the scores from 0 to 1 by scorer; of one that gives several, each as SCORER/NAME."""
    found = {}
    for scorer, score in scores.items():
        value = score.get("value")
        for name, one in value.items() if isinstance(value, dict) else [("", value)]:
            number = _WORDS.get(one.strip().casefold(), one) if isinstance(one, str) else one
            with suppress(ValueError, TypeError):
                if 0 <= float(number) <= 1:
                    found[f"{scorer}/{name}" if name else scorer] = float(number)
    return found


# ------------------------------------------------------------------------------------------ lm-evaluation-harness


def _samples(data: bytes) -> Source:
    found: dict[tuple[object, ...], Answer] = {}
    unclear: set[tuple[tuple[object, ...], str]] = set()
    for number, line in enumerate(data.decode().split("\n"), 1):
        for answer in _sampled(number, json.loads(line)) if line.strip() else ():
            key: tuple[object, ...] = (answer.id, answer.epoch, answer.prompt, answer.output, answer.refused)
            known = found.setdefault(key, answer)
            unclear |= {(key, name) for name, value in answer.theirs.items() if known.theirs.get(name, value) != value}
            found[key] = replace(known, theirs={**known.theirs, **answer.theirs})
    for key, name in unclear:
        found[key] = replace(found[key], theirs={k: v for k, v in found[key].theirs.items() if k != name})
    notes = ["the log does not say how an answer ended: a cut-off answer is graded as if complete"]
    if unclear:
        notes.append(f"{len(unclear)} scores occur twice with different values and were skipped")
    if any(answer.epoch > 1 for answer in found.values()):
        notes.append("scores of documents with several answers are not compared: they belong to no single answer")
    return Source("lm-evaluation-harness", "resps", list(found.values()), tuple(notes))


def _sampled(number: int, line: dict[str, Any]) -> Iterator[Answer]:
    doc = line["doc"] if isinstance(line.get("doc"), dict) else {}
    name, where, resps = str(doc.get("id") or line.get("doc_id")), f"line {number}", line.get("resps")
    if not isinstance(resps, list) or len(resps) != 1 or not isinstance(resps[0], list):
        yield Answer(where, name, refused="several requests for one document: log likelihoods, not a generated answer")
        return
    asked = tuple(value for value in doc.values() if isinstance(value, str))
    ends = f",{line['filter']}" if line.get("filter") else ""
    named = ((metric, line.get(metric)) for metric in line.get("metrics") or () if len(resps[0]) == 1)
    theirs = {f"{metric}{ends}": float(v) for metric, v in named if isinstance(v, (int, float)) and 0 <= v <= 1}
    for epoch, said in enumerate(resps[0], 1):
        if isinstance(said, str):
            yield Answer(where, name, epoch, asked, _prompt(line.get("arguments")), said, theirs=theirs)
        else:
            yield Answer(where, name, epoch, refused="a log likelihood, not a generated answer")


def _prompt(arguments: Any) -> str:
    """Return what was sent: a text, or the texts of a chat's messages."""
    sent: Any = ""
    with suppress(KeyError, TypeError):
        sent = arguments["gen_args_0"]["arg_0"]
    sent = sent[0] if isinstance(sent, list) and len(sent) == 1 else sent
    with suppress(ValueError, TypeError, KeyError):
        return "\n\n".join(message["content"] for message in json.loads(sent) if message["role"] != "assistant")
    return sent if isinstance(sent, str) else ""


# ------------------------------------------------------------------------------------------------- a trace of ds4

_LINE = re.compile(
    rb"^(?:(?P<case>=====) .*|(?P<name>[a-z_]+): (?P<value>.*)|(?P<text>[A-Z_]+)_BEGIN bytes=(?P<size>[0-9]+))\n",
    re.M,
)


def _trace(data: bytes) -> Source:
    cases: list[dict[str, str]] = [{}]
    at = 0
    while line := _LINE.search(data, at):
        at = line.end()
        if line["case"]:
            cases.append({})
        elif line["name"]:
            cases[-1][line["name"].decode()] = line["value"].decode("utf-8", "replace")
        else:
            end = at + int(line["size"])
            if end + len(line["text"]) + 4 >= len(data):
                break
            if not data[end : end + 1 + len(line["text"]) + 4].removeprefix(b"\n").startswith(line["text"] + b"_END"):
                raise ValueError(f"{line['text'].decode()} of {cases[-1].get('id')} has another length than it states")
            cases[-1][line["text"].decode()] = data[at:end].decode("utf-8", "replace")
            at = end
    whole = [case for case in cases[1:] if "MODEL_OUTPUT" in case and case.get("status") not in ("SKIPPED", "SWITCHED")]
    notes = () if b"===== SUMMARY" in data else ("the trace is cut off: its last question may be missing",)
    answers = {case.get("id", ""): _traced(case, cases[0]) for case in whole}
    return Source("ds4-eval of ds4", "MODEL_OUTPUT", list(answers.values()), notes)


def _traced(case: dict[str, str], header: dict[str, str]) -> Answer:
    def number(fields: dict[str, str], name: str) -> int | None:
        return int(fields[name]) if fields.get(name, "").isdigit() else None

    status, output, prompt = case.get("status", ""), case["MODEL_OUTPUT"], case.get("QUESTION_PROMPT", "")
    thinks = case.get("think_mode_effective", "none") not in ("none", "nothink", "off")
    closed = case.get("think_close", "none")
    reasoning, close = "", (closed if closed != "none" else "natural") if thinks else ""
    if thinks and "</think>" not in output:
        reasoning, output, close = output, "", "open"
    generated, limit = number(case, "generated_tokens"), number(header, "max_tokens")
    cut = generated is not None and limit is not None and generated >= limit
    begun, score = number(case, "timestamp_unix"), {"PASSED": 1.0, "FAILED": 0.0}.get(status)
    return Answer(
        f"case {case.get('id')}", case.get("id", ""), 1, (prompt,), prompt, output, reasoning,
        "length" if cut else "stop", close,
        error=case.get("error") or {"ERROR": "an error", "STOPPED": "stopped"}.get(status, ""),
        theirs={} if score is None else {"ds4": score}, model=header.get("model", ""),
        started="" if begun is None else datetime.fromtimestamp(begun, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        prompt_tokens=number(case, "prompt_tokens"), tokens=generated, seconds=float(case.get("elapsed_sec") or 0),
    )  # fmt: skip
