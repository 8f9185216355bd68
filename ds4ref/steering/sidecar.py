"""The sidecar of a file of directions: a JSON file that says how and from which prompts they were made.

The sidecar of ``direction.f32`` is ``direction.json``. It has ds4's format ``ds4-directional-steering-v1`` with more
fields, such as the test on held-out pairs. An engine reads only the file of directions.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..archs.steering import digest
from ..errors import DataError, UsageError
from ..files import atomic_write
from ..runs.provenance import identity, stamp
from ..runs.stats import Interval
from .prompts import mark

if TYPE_CHECKING:
    import numpy as np

    from ..engine import Engine
    from .build import Built, Options

FORMAT = "ds4-directional-steering-v1"
COMPONENTS = {"ffn_out": "ffn", "attn_out": "attn"}
"""Maps what directions are built from (the output of FFN or attention) to the field of ``Steering`` with its scale."""


def beside(path: str | os.PathLike[str]) -> Path:
    """Return the path of the sidecar of the file of directions at ``path``: the same name with suffix .json."""
    return Path(path).with_suffix(".json")


def describe(
    engine: Engine, built: Built, options: Options, component: str, thinking: str, system: str,
    files: Mapping[str, tuple[str, str]], used: Sequence[str], command: Sequence[str],
) -> dict[str, Any]:  # fmt: skip
    """Return the content of a sidecar as a dict.

    component  component whose output the directions were built from: "ffn_out" or "attn_out"
    thinking   thinking mode of the prompts; ``system`` is their system message
    files      (name, text) of the files of prompts, under the keys "good_file" and "bad_file"
    used       the prompts that the directions were built from
    """
    return {
        "format": FORMAT,
        "shape": list(built.rows.shape),
        "component": component,
        "thinking": thinking != "none",
        "pair_normalize": options.pair_normalize,
        "orthogonalize_control_mean": options.orthogonalize,
        **{field: name for field, (name, _) in files.items()},
        "model": os.path.abspath(engine.path),
        "note": built.verdict,
        "sha256": digest(built.rows),
        "think": thinking,
        "system": system,
        "prompts_sha256": {field: hashlib.sha256(text.encode()).hexdigest() for field, (_, text) in files.items()},
        "pairs": built.pairs,
        "held_out": built.held_out,
        "layers": [
            {"weight": layer.weight, "folds": numbers(layer.folds), "held_out": numbers(layer.held_out)}
            for layer in built.layers
        ],
        "used": sorted({mark(prompt) for prompt in used}),
        "made_by": {**identity(engine), **stamp(command)},
    }


def numbers(interval: Interval) -> list[float | None]:
    """Return [estimate, low, high] of an interval, with None for infinite values, which JSON cannot express."""
    return [value if abs(value) < float("inf") else None for value in (interval.estimate, interval.low, interval.high)]


def check_free(path: str | os.PathLike[str], *inputs: str) -> None:
    """Raise UsageError if writing directions to ``path``, and their sidecar, would overwrite a file of the user.

    That is one of ``inputs``, or a file in the place of the sidecar that is not a sidecar.
    """
    taken = [os.path.realpath(name) for name in inputs]
    for name in (Path(path), beside(path)):
        if os.path.realpath(name) in taken:
            raise UsageError(f"{name} is a file of prompts: directions and their description want other names")
    if beside(path).exists() and not _fields(path):
        raise UsageError(f"{beside(path)} is there and no description of directions: choose another name")


def _fields(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the content of the sidecar of ``path``, {} if there is none or the file is something else."""
    try:
        fields = json.loads(beside(path).read_bytes())
    except (OSError, ValueError):
        return {}
    return fields if isinstance(fields, dict) and fields.get("format") == FORMAT else {}


def write(path: str | os.PathLike[str], fields: Mapping[str, Any]) -> None:
    """Write the sidecar of the file of directions at ``path``."""
    with atomic_write(beside(path)) as file:
        file.write((json.dumps(fields, indent=1, ensure_ascii=False) + "\n").encode())


def read(path: str | os.PathLike[str], rows: np.ndarray) -> dict[str, Any]:
    """Return the content of the sidecar of the file at ``path``, or {} if there is none.

    Raise DataError if the file is not a sidecar, or if its digest shows that it belongs to other directions than
    ``rows``. Sidecars written by ds4 have fewer fields and no digest.
    """
    if not beside(path).exists():
        return {}
    fields = _fields(path)
    if not fields:
        raise DataError(f"{beside(path)}: no sidecar of directions (format {FORMAT})")
    if fields.get("sha256", digest(rows)) != digest(rows):
        raise DataError(f"{beside(path)}: describes other directions than those in {os.fspath(path)}")
    if fields.get("component", "ffn_out") not in COMPONENTS:
        raise DataError(f"{beside(path)}: unknown component {fields['component']!r}: {' or '.join(COMPONENTS)}")
    used = fields.get("used", [])
    if not isinstance(used, list) or not all(isinstance(one, str) for one in used):
        raise DataError(f'{beside(path)}: "used" is not a list of prompts\' digests')
    return fields
