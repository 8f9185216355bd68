"""Read lm-evaluation-harness's logged samples: ``samples_TASK_DATE.jsonl``, one document a line.

``doc`` is the document as the task read it, ``arguments`` are the requests sent for it, ``target`` is the right answer
as text. Tasks choose their forms freely, so every interpretation must be confirmed by a second place:

* the question is a field of the document whose text the prompt contains, with the passage if the prompt contains that,
  too; without such a field it is the whole prompt, examples included;
* choices are the document's, or else the continuations that were scored; if there are both, they must agree;
* the target is a position, a letter or label, or the text of a choice. If it can be read in two ways, a number in the
  document decides, or else the sample is left out;
* without choices the target must be a whole number, or end with one after ``####`` as in GSM8K.

A document that was graded with several filters is logged once for each, and becomes one question.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from ..packs import LETTERS, Question
from .records import NOT_STATED, Record, Shape, Skip, choices_of, fold, identity, integer_of, letter_of

QUESTIONS = ("question", "problem", "query", "question stem", "input", "goal", "prompt", "ctx", "text")
PASSAGES = ("passage", "context", "support", "article", "story", "paragraph", "background")
CHOICES = ("choices", "options")
KEYS = ("answer", "answerkey", "answer key", "answer index", "answer idx", "label", "gold")
_FILE = re.compile(r"samples_(.+?)(?:_[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9.:-]+)?")


def task(stem: str) -> str:
    """Return the name of the task from the name of a file."""
    match = _FILE.fullmatch(stem)
    return match[1] if match else stem


def question(record: Record) -> Question:
    """Convert one sample to a question."""
    doc = record.value("doc")
    if not isinstance(doc, dict):
        raise Skip("no document")
    cells = Record(record.path, record.line, {fold(name): value for name, value in reversed(doc.items())})
    requests = _requests(record.value("arguments"))
    continuations = _continuations(requests)
    texts, labels = _choices(cells, continuations)
    name = task(record.stem)
    own = record.note("doc id")
    made: dict[str, Any] = {
        "id": identity(f"{name}-{own}" if own else ""),
        "source": name,
        "domain": cells.note("subject", "category", "domain", "discipline", "topic", "type") or name,
        "difficulty": cells.note("difficulty", "level"),
        "question": _question(cells, requests),
    }
    target = record.value("target")
    if texts:
        choices = choices_of(texts)
        right = _right(target, choices, labels, cells, scored=bool(continuations))
        return Question(kind="choice", choices=choices, answer=LETTERS[right], **made)
    return Question(kind="integer", choices=(), answer=_integer(record, target, requests), **made)


# -------------------------------------------------------------------------------------------------------- requests


def _requests(arguments: Any) -> list[tuple[str, Any]]:
    """List (prompt, continuation or settings) of each request that has a prompt."""
    if isinstance(arguments, dict):
        arguments = [arguments[name] for name in sorted(arguments, key=_number)]
    found = []
    for args in arguments if isinstance(arguments, list) else []:
        if isinstance(args, dict):
            args = [args.get("arg_0"), args.get("arg_1")]
        if isinstance(args, list) and args:
            prompt = args[0][0] if isinstance(args[0], list) and args[0] else args[0]  # so chats are written
            if isinstance(prompt, str) and prompt:
                found.append((_spoken(prompt), args[1] if len(args) > 1 else None))
    return found


def _number(name: str) -> int:
    match = re.search(r"[0-9]{1,9}$", name)
    return int(match[0]) if match else 0


def _spoken(prompt: str) -> str:
    """Return the prompt; join the texts of one that is a JSON list of chat messages."""
    if prompt.startswith("[{"):
        try:
            messages = json.loads(prompt)
            return "\n\n".join(message["content"] for message in messages)
        except (ValueError, TypeError, KeyError, RecursionError):
            pass
    return prompt


def _continuations(requests: Sequence[tuple[str, Any]]) -> list[str]:
    """List the texts whose probabilities were compared; empty for free generation."""
    found = [more for _, more in requests if isinstance(more, str)]
    if len(found) < 2 or len(found) < len(requests):
        return []
    if len({prompt for prompt, _ in requests}) > 1:
        raise Skip("the choices are prompts, not continuations")
    return [text.strip() for text in found]


def _question(doc: Record, requests: Sequence[tuple[str, Any]]) -> str:
    prompt = requests[0][0] if requests else None
    seen = None if prompt is None else " ".join(prompt.split())

    def shown(text: object) -> bool:
        if not isinstance(text, str) or not text.strip():
            return False
        plain = re.escape(" ".join(text.split()))
        return seen is None or re.search(rf"(?<!\w){plain}(?!\w)", seen) is not None

    asked = next((doc.cells[name] for name in QUESTIONS if shown(doc.cells.get(name))), None)
    if asked is None:
        if prompt is None:
            raise Skip("neither a question nor a prompt")
        if "<|" in prompt:
            raise Skip("no question, and a prompt with the markup of another model")
        return prompt
    passage = next((doc.cells[name] for name in PASSAGES if shown(doc.cells.get(name))), None)
    return asked if passage is None or passage in asked or seen is None else f"{passage}\n\n{asked}"


# --------------------------------------------------------------------------------------------------------- choices


def _choices(doc: Record, continuations: Sequence[str]) -> tuple[list[Any], list[str]]:
    """Texts of the choices in the order of positions, and their labels if the document has any."""
    written = next((doc.cells[name] for name in CHOICES if doc.cells.get(name)), None)
    texts, labels = _documented(written)
    if not continuations:
        if written and not texts:
            raise Skip("choices in an unknown form", written)
        return texts, labels
    lettered = all(_is_label(text, i, labels) for i, text in enumerate(continuations))
    if not texts:
        if lettered:
            raise Skip("the choices are letters, their texts are in the prompt only")
        return list(continuations), []
    plain = [text.strip() if isinstance(text, str) else text for text in texts]
    if len(plain) != len(continuations):
        raise Skip("document and requests have different numbers of choices", f"{len(plain)}, {len(continuations)}")
    if lettered or plain == list(continuations):
        return texts, labels
    if any(not isinstance(text, str) for text in plain) or sorted(plain) != sorted(continuations):
        raise Skip("document and requests have different choices")
    order = [plain.index(text) for text in continuations]
    return [texts[i] for i in order], [labels[i] for i in order] if labels else []


def _documented(found: Any) -> tuple[list[Any], list[str]]:
    """Read a list of choices, ``{"text": [...], "label": [...]}``, a list of such pairs, or ``{"A": ...}``."""
    if isinstance(found, list):
        if found and all(isinstance(entry, dict) and "text" in entry for entry in found):
            return [entry["text"] for entry in found], _labels([entry.get("label") for entry in found])
        return found, []
    if isinstance(found, dict):
        texts = found.get("text")
        if isinstance(texts, list):
            labels = found.get("label")
            return texts, _labels(labels) if isinstance(labels, list) and len(labels) == len(texts) else []
        if list(found) == list(LETTERS[: len(found)]):
            return list(found.values()), list(found)
    return [], []


def _labels(found: Sequence[Any]) -> list[str]:
    """Return the labels if they are distinct texts, else none."""
    good = all(isinstance(label, str) for label in found) and len(set(found)) == len(found)
    return [str(label) for label in found] if good else []


def _is_label(text: str, position: int, labels: Sequence[str]) -> bool:
    """Whether a continuation is a choice's label instead of its text."""
    bare = text.strip("(). ")
    return bare in {LETTERS[position : position + 1], str(position + 1)} or (
        position < len(labels) and bare == labels[position]
    )


# ---------------------------------------------------------------------------------------------------------- answers


def _right(target: Any, choices: Sequence[str], labels: Sequence[str], doc: Record, scored: bool) -> int:
    """Find the position of the right choice."""
    readings = _readings(target, choices, labels, scored)
    if not readings:
        raise Skip("the target is none of the choices", target)
    keys = [doc.cells[name] for name in KEYS if name in doc.cells]
    labelled = {labels.index(key) for key in keys if isinstance(key, str) and key in labels}
    if labelled and not readings & labelled:
        raise Skip("the target and the key of the document disagree", target)
    readings &= labelled or readings
    if len(readings) > 1:
        readings &= {key for key in keys if isinstance(key, int) and not isinstance(key, bool)}
    if len(readings) != 1:
        raise Skip("the target can be read in several ways", target)
    return readings.pop()


def _readings(target: Any, choices: Sequence[str], labels: Sequence[str], scored: bool) -> set[int]:
    """List all positions that a target may mean; a number is a position only if continuations were compared."""
    if isinstance(target, bool):
        return set()
    if isinstance(target, int):
        return {target} & set(range(len(choices)))
    if not isinstance(target, str):
        return set()
    text = target.strip()
    found = {i for i, choice in enumerate(choices) if choice.strip() == text}
    if text in labels:
        found.add(labels.index(text))
    elif (letter := letter_of(text, choices)) is not None:
        found.add(letter)
    if scored and re.fullmatch(r"[0-9]{1,2}", text) and int(text) < len(choices):
        found.add(int(text))
    return found


def _integer(record: Record, target: Any, requests: Sequence[tuple[str, Any]]) -> str:
    """Read the integer that was right."""
    if isinstance(target, (list, dict)):
        raise Skip("several targets", target)
    if isinstance(target, str) and "####" in target:
        return integer_of(target.rpartition("####")[2])
    if not requests and record.cells.keys() & {"acc", "acc norm"}:
        raise Skip("no choices, and a target that may be the position of one", target)
    return integer_of(target)


SHAPE = Shape(
    name="lm-eval",
    title="samples of lm-evaluation-harness",
    licence=NOT_STATED,
    needs=(("doc",), ("target",)),
    fits=lambda cells: {"doc", "target"} <= cells and bool(cells & {"arguments", "doc id", "resps"}),
    question=question,
)
