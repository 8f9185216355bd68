"""Tables that map other engines' tensor names to the points of our pass.

A table is TOML (presets: ``presets/``) with one line per point (``ops.OPS``) and {layer} for the layer number:

    [points]
    q_lora = "qr-{layer}"
    Qnorm = { name = "model.layers.{layer}.self_attn.q_b_norm.out", axes = "1HTF" }
    kqv_out = ["attn_raw-{layer}", "attn_hca-{layer}"]                      the first that the dump has

    axes    letters of the dumped axes in order: those of ``ops.Op.axes``, 1 for an axis of size 1 to drop, any other
            letter for an axis to merge into the one after it. Without it, shapes must agree, except for axes of size 1,
            merged axes, or a different order of axes if only one fits
    slice   [from, to] of the last axis
    first   letter of an axis that the other engine pads at its end, so that only the first entries count
    scale   factor on the dumped values: a number, or the name of a model dimension (index_scale)
    times   another dumped tensor to multiply the values by, broadcast over trailing axes
    parts   2: a point of two arrays, NAME.0 and NAME.1
    layer   for a name without {layer}: a number or "last"
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import msgspec

from ds4ref.errors import DataError, UsageError

from .ops import HEAD_POINTS, OPS, Key

PRESETS = ("ours", "ds4", "llama.cpp", "hf")


class NameRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Name of a point's values in another engine's dump, and how to read them (keys as in the module's docstring)."""

    name: str
    axes: str = ""
    slice: tuple[int, int] | None = None
    first: str = ""
    scale: float | str = 1.0
    times: str = ""
    parts: int = 1
    layer: int | str | None = None


@dataclass(frozen=True)
class NameTable:
    """A preset or a user's table.

    name    of the preset or file
    points  rules by point, the preferred ones first
    """

    name: str
    points: dict[str, tuple[NameRule, ...]]

    def find(self, names: Iterable[str], n_layers: int) -> dict[Key, tuple[str, NameRule]]:
        """Map (point, layer) to (name in the dump, rule to read it) for every rule that matches one of ``names``."""
        known = sorted(names)
        matches: dict[Key, tuple[str, NameRule]] = {}
        for point, sources in self.points.items():
            for source in sources:
                for name, layer in _matches(source, point, known, n_layers):
                    if (0 <= layer < n_layers) != (point in HEAD_POINTS):
                        matches.setdefault((point, layer), (name, source))
        return matches


def _matches(source: NameRule, point: str, names: list[str], n_layers: int) -> Iterable[tuple[str, int]]:
    """Yield (name in the dump, layer) for those of ``names`` that the rule ``source`` matches."""
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


def load(name: str) -> NameTable:
    """Load a preset by name, else a TOML file; UsageError if it is neither, DataError if it is malformed."""
    if name in PRESETS:
        text = resources.files(__package__).joinpath("presets", f"{name}.toml").read_text("utf-8")
        return parse(text, name)
    if not Path(name).is_file():
        raise UsageError(f"--names {name}: neither a preset ({', '.join(PRESETS)}) nor a file")
    try:
        return parse(Path(name).read_text("utf-8"), name)
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"cannot read {name}: {error}") from error


def parse(text: str, where: str) -> NameTable:
    """Parse a table from TOML text; DataError names ``where`` if it is malformed."""
    try:
        table = msgspec.toml.decode(text, type=_Table)
    except msgspec.MsgspecError as error:
        raise DataError(f"{where} is no table of names: {error}") from error
    unknown = [name for name in table.points if name not in OPS]
    if not table.points:
        raise DataError(f"{where}: the table [points] is empty")
    if unknown:
        known = "docs/reference/trace.md 7 lists the names of intermediates"
        raise DataError(f"{where}: unknown names {', '.join(unknown[:3])}; {known}")
    points = {point: tuple(map(_rule, value if isinstance(value, list) else [value]))
              for point, value in table.points.items()}  # fmt: skip
    if any(rule.times not in ("", *OPS) for rules in points.values() for rule in rules):
        raise DataError(f"{where}: times must be a point of the pass")
    return NameTable(where, points)


class _Table(msgspec.Struct):
    """A table as written in its TOML file."""

    points: dict[str, str | NameRule | list[str | NameRule]]


def _rule(value: str | NameRule) -> NameRule:
    return NameRule(value) if isinstance(value, str) else value


def guess(names: Iterable[str], n_layers: int) -> tuple[NameTable, dict[Key, tuple[str, NameRule]]]:
    """Return the preset that matches most of the dump's ``names``, and its matches; DataError if none matches any."""
    names = list(names)
    tables = [load(preset) for preset in PRESETS]
    candidates = [(table, table.find(names, n_layers)) for table in tables]
    table, best = max(candidates, key=lambda pair: len(pair[1]))
    if not best:
        examples = ", ".join(sorted(names)[:4])
        raise DataError(f"no preset knows these names ({examples}, ...): give a table of names with --names FILE.toml")
    return table, best
