"""Whose name is which: tables from other engines' tensor names to the points of our pass.

A table is TOML; presets lie in ``presets/``. One line a point (``ops.OPS``), {layer} where the number stands:

    [points]
    q_lora = "qr-{layer}"
    Qnorm = { name = "model.layers.{layer}.self_attn.q_b_norm.out", axes = "1HTF" }
    kqv_out = ["attn_raw-{layer}", "attn_hca-{layer}"]                      the first that is there

    axes    letters of their axes in order: those of ``ops.Op.axes``, 1 for an axis that is dropped, G and others that
            are merged into the one after it. Without it shapes must agree, up to axes of size 1, merged axes, or one
            order of axes that fits
    slice   [from, to] of the last axis
    first   "N": their axis is longer than ours (padding): only its beginning counts
    scale   a factor on their values: a number, or a dimension of the model (index_scale)
    times   a point of theirs whose values multiply, one for each leading axes
    parts   2: a point of two arrays, NAME.0 and NAME.1
    layer   for a name without {layer}: a number or "last"
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from ds4ref.errors import DataError, UsageError

from .ops import HEAD_POINTS, OPS, Key

PRESETS = ("ours", "ds4", "llama.cpp", "hf")


@dataclass(frozen=True)
class Source:
    """Where a point's values are in another engine's dump, and how to read them (see above)."""

    name: str
    axes: str = ""
    slice: tuple[int, int] | None = None
    first: str = ""
    scale: float | str = 1.0
    times: str = ""
    parts: int = 1
    layer: int | str | None = None


@dataclass(frozen=True)
class Table:
    """A preset or a file: sources by point, the better ones first."""

    name: str
    says: str
    points: dict[str, tuple[Source, ...]]

    def find(self, names: Iterable[str], n_layers: int) -> dict[Key, tuple[str, Source]]:
        """(point, layer) -> (their name, how to read it), for all that are among ``names``."""
        known = sorted(names)
        found: dict[Key, tuple[str, Source]] = {}
        for point, sources in self.points.items():
            for source in sources:
                for name, layer in _matches(source, point, known, n_layers):
                    if (0 <= layer < n_layers) != (point in HEAD_POINTS):
                        found.setdefault((point, layer), (name, source))
        return found


def _matches(source: Source, point: str, names: list[str], n_layers: int) -> Iterable[tuple[str, int]]:
    if "{layer}" in source.name:
        before, after = source.name.split("{layer}", 1)
        part = r"\.0" if source.parts > 1 else ""
        pattern = re.compile("(" + re.escape(before) + r"(\d{1,5})" + re.escape(after) + ")" + part)
        for name in names:
            match = pattern.fullmatch(name)
            if match:
                yield match[1], int(match[2])
    elif source.name in names:
        if point in HEAD_POINTS:
            yield source.name, -1
        elif source.layer is not None:
            yield source.name, n_layers - 1 if source.layer == "last" else int(source.layer)


def load(name: str) -> Table:
    """A preset by name, else a TOML file. UsageError if it is neither, DataError if it is not understood."""
    if name in PRESETS:
        text = resources.files(__package__).joinpath("presets", f"{name}.toml").read_text("utf-8")
        return parse(text, name)
    if not Path(name).is_file():
        raise UsageError(f"--names {name}: neither a preset ({', '.join(PRESETS)}) nor a file")
    try:
        return parse(Path(name).read_text("utf-8"), name)
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"cannot read {name}: {error}") from error


def parse(text: str, where: str) -> Table:
    """A table from its TOML."""
    try:
        found = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise DataError(f"{where} is no TOML: {error}") from error
    points = found.get("points")
    if not isinstance(points, dict) or not points:
        raise DataError(f"{where}: a table [points] is needed")
    unknown = [name for name in points if name not in OPS]
    if unknown:
        raise DataError(f"{where}: no point of the pass is called {', '.join(unknown[:3])}")
    made = {
        point: tuple(_source(s, f"{where}: {point}") for s in (value if isinstance(value, list) else [value]))
        for point, value in points.items()
    }
    return Table(where, str(found.get("says", "")), made)


def _source(value: Any, where: str) -> Source:
    if isinstance(value, str):
        value = {"name": value}
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        raise DataError(f"{where}: a name, or a table with one, is needed")
    unknown = set(value) - set(Source.__dataclass_fields__)
    if unknown:
        raise DataError(f"{where}: unknown {', '.join(sorted(unknown))}")
    fields = dict(value)
    if "slice" in fields:
        bounds = fields["slice"]
        if not isinstance(bounds, list) or len(bounds) != 2 or not all(type(n) is int for n in bounds):
            raise DataError(f"{where}: slice must be [from, to]")
        fields["slice"] = tuple(bounds)
    if type(fields.get("scale", 1.0)) not in (int, float, str) or not isinstance(fields.get("axes", ""), str):
        raise DataError(f"{where}: scale must be a number or a dimension, axes a string")
    if fields.get("times", "") not in ("", *OPS):
        raise DataError(f"{where}: times must be a point of the pass")
    return Source(**fields)


def guess(names: Iterable[str], n_layers: int) -> tuple[Table, dict[Key, tuple[str, Source]]]:
    """The preset that knows most of ``names``. DataError if none knows any."""
    names = list(names)
    tables = [load(preset) for preset in PRESETS]
    found = [(table, table.find(names, n_layers)) for table in tables]
    table, best = max(found, key=lambda pair: len(pair[1]))
    if not best:
        shown = ", ".join(sorted(names)[:4])
        raise DataError(f"no preset knows these names ({shown}, ...): give a table of names with --names FILE.toml")
    return table, best
