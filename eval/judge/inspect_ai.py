"""Read logs of inspect_ai: a .json file, or the .eval archive of one JSON file a sample.

.eval archives are compressed by Zstandard, which Python can read from 3.14 on; before that the package zipfile-zstd
teaches it. ``inspect log convert --to json`` needs neither.
"""

from __future__ import annotations

import importlib
import json
import zipfile
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from ds4ref.errors import DataError

from .answers import Answer, Source

FIELD = "output.choices[0].message.content"
FINISHES = {"max_tokens": "length", "model_length": "length", "unknown": ""}
_VERSION = 2
_WORDS = {"c": 1.0, "i": 0.0, "p": 0.5, "n": 0.0, "yes": 1.0, "true": 1.0, "no": 0.0, "false": 0.0}
"""Numbers for words, as inspect_ai's own metrics take them."""


def fits(path: Path, head: bytes) -> bool:
    """Return whether a file that begins with ``head`` may be a log of inspect_ai."""
    return head.startswith(b"PK\3\4") or (head.lstrip().startswith(b"{") and b'"version"' in head[:200])


def read(path: Path) -> Source:
    """Read a log; DataError if it is damaged, of another version, or cannot be decompressed here."""
    log = _archive(path) if zipfile.is_zipfile(path) else _object(path, path.read_bytes(), path.name)
    about, samples = log.get("eval"), log.get("samples")
    if log.get("version") != _VERSION or not isinstance(about, dict) or not isinstance(samples, list):
        raise DataError(f"{path}: not a log of inspect_ai (version {_VERSION}) with samples")
    notes = [] if log.get("status") == "success" else [f"the run's status is {log.get('status')}"]
    version = (about.get("packages") or {}).get("inspect_ai", "")
    try:
        answers = [_answer(sample, str(about.get("model") or "")) for sample in samples]
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise DataError(f"{path}: a damaged sample: {error!r}") from None
    return Source(f"inspect_ai {version}".strip(), FIELD, answers, tuple(notes))


def _archive(path: Path) -> dict[str, Any]:
    with suppress(ImportError):
        importlib.import_module("zipfile_zstd")
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
            if "header.json" not in names:
                raise DataError(
                    f"{path}: no header.json in it: the run did not finish, or this is not a log of inspect_ai"
                )
            log = _object(path, archive.read("header.json"), "header.json")
            parts = [name for name in names if name.startswith("samples/")]
            return {**log, "samples": [_object(path, archive.read(name), name) for name in parts]}
    except NotImplementedError:
        raise DataError(f"{path}: compressed with Zstandard, which this Python cannot read: pip install zipfile-zstd, "
                        "or convert it with inspect log convert --to json") from None  # fmt: skip
    except (zipfile.BadZipFile, OSError, EOFError) as error:
        raise DataError(f"{path}: {error}") from None


def _object(path: Path, data: bytes, name: str) -> dict[str, Any]:
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: {name} is not JSON, or is cut off: {error}") from None
    if not isinstance(found, dict):
        raise DataError(f"{path}: {name} is not a JSON object")
    return found


def _answer(sample: dict[str, Any], model: str) -> Answer:
    name, epoch = str(sample["id"]), int(sample.get("epoch", 1))
    where = f"sample {name}, epoch {epoch}"
    sample = _resolved(sample, sample.get("attachments") or {})
    sent = [_text(m["content"]) for m in sample.get("messages") or () if m["role"] in ("system", "user")]
    asked = sample["input"]
    asked = _text(asked) if isinstance(asked, str) else _text(asked[-1]["content"])
    output = sample.get("output") or {}
    choices, usage, error = output.get("choices") or [], output.get("usage") or {}, sample.get("error") or {}
    begun = Answer(
        where, name, epoch, (asked,), "\n\n".join(sent), theirs=_scores(sample.get("scores") or {}),
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
        each = value.items() if isinstance(value, dict) else [("", value)]
        for name, one in each:
            number = _WORDS.get(one.strip().casefold(), one) if isinstance(one, str) else one
            with suppress(ValueError, TypeError):
                if 0 <= float(number) <= 1:
                    found[f"{scorer}/{name}" if name else scorer] = float(number)
    return found
