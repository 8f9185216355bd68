"""JSON schemas that an answer must fit: the corpus, and its validation.

for case in CORPUS:                    one line of prompts/schemas.jsonl each
    fault(case.schema, case.invalid)   "$.size: 12 is above maximum 10"; "" for a value that fits
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib import resources
from typing import Any


@dataclass(frozen=True)
class SchemaCase:
    """One schema of the corpus.

    quick    whether the quick form has it, too
    valid    a value that fits
    invalid  a value that does not, which the prompt asks for
    """

    name: str
    schema: dict[str, Any]
    valid: Any
    invalid: Any
    quick: bool = False


_LINES = resources.files("ds4ref.test_vectors").joinpath("prompts", "schemas.jsonl").read_text("utf-8")
CORPUS = [SchemaCase(**json.loads(line)) for line in _LINES.splitlines()]


def fault(schema: Any, value: Any) -> str:
    """Return where and why ``value`` does not fit ``schema``, "" if it fits."""
    from jsonschema import Draft202012Validator

    error = next(Draft202012Validator(schema).iter_errors(value), None)
    return "" if error is None else f"{error.json_path}: {error.message[:80]}"
