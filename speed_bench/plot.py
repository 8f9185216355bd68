"""Speed curves: one or several CSVs to one figure, as SVG, PNG or PDF by the output's suffix.

A panel each for prefill and decode, both from zero, as in reports (``ds4ref.console.curves``): every file has a colour,
and its machine's name beside its curves; a band has the quartiles of its repetitions. The same input gives the same
bytes.

    ds4-bench plot results/m3.csv -o m3.svg --title "M3 Max"
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ds4ref.console.curves import Curve, speed_figure
from ds4ref.console.plots import INK
from ds4ref.errors import DataError, UsageError
from ds4ref.targets.wire import printable

from .published import MACHINES
from .results import Point, read_points

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SUFFIXES = (".svg", ".png", ".pdf")
TITLE = 60
"""Characters of a title, above which it counts files instead of naming them."""
NAMES = {word.lower(): word for word in ("AMD", "CPU", "DGX", "EPYC", "GPU", "GTX", "L40S", "MI300X", "NVIDIA", "RTX")}
"""Spelling of words in machines' names that have their own."""


def default_output(path: str | os.PathLike[str]) -> Path:
    """Return the path of a CSV's default plot: ``dir/name.csv`` -> ``dir/name_ts.svg``."""
    path = Path(path)
    return path.with_name(path.stem + "_ts.svg")


def check_suffix(path: str | os.PathLike[str]) -> None:
    """Raise UsageError unless the path ends in .svg, .png or .pdf."""
    if Path(path).suffix.lower() not in SUFFIXES:
        raise UsageError(f"cannot plot to {path}: the name must end in {', '.join(SUFFIXES)}")


def default_title(*paths: str | os.PathLike[str]) -> str:
    """Return a plot's title from file names: ``m3_max.csv`` -> ``M3 Max t/s``; several are joined by commas."""
    names, more = [words(Path(path).stem) for path in paths], 0
    while len(", ".join(names)) > TITLE and len(names) > 1:
        names, more = names[:-1], more + 1
    return ", ".join(names) + (f" and {more} more" if more else "") + " t/s"


def words(stem: str) -> str:
    """Return a file name without suffix as a machine's name, or as words of a title: ``m3_max`` -> ``M3 Max``."""
    parts = [part for part in re.split(r"[ _-]+", printable(stem)) if part]
    known = MACHINES.get("-".join(parts).lower())
    return known.name if known is not None else " ".join(map(_word, parts))


def _word(text: str) -> str:
    if re.fullmatch(r"[a-z]{1,2}[0-9]+", text):
        return text.upper()
    return NAMES.get(text.lower(), text if re.search("[A-Z]", text) else text.capitalize())


def plot(
    sources: Sequence[str | os.PathLike[str]],
    outputs: Sequence[str | os.PathLike[str]] = (),
    title: str | None = None,
    size: tuple[int, int] = (960, 540),
) -> list[Path]:
    """Draw the CSVs ``sources`` into each file of ``outputs`` (default: an SVG beside the first CSV); return the files.

    ``size`` in pixels (PNGs have twice as many, for sharp screens). Raises DataError for bad data or a file that cannot
    be written, UsageError for an output of unknown suffix.
    """
    files = [Path(output) for output in outputs] or [default_output(sources[0])]
    for file in files:
        check_suffix(file)
    curves = [(words(Path(source).stem), read_points(source)) for source in sources]
    figure = draw(curves, title or default_title(*sources), size)
    for file in files:
        save(figure, file)
    return files


def draw(curves: Sequence[tuple[str, list[Point]]], title: str, size: tuple[int, int]) -> Figure:
    """Return the figure of named curves; ``size`` in pixels. Imports matplotlib, which takes half a second."""
    import matplotlib

    names: list[str] = []
    for name, _ in curves:
        count = sum(other == name or other.startswith(f"{name} (") for other in names)
        names.append(f"{name} ({count + 1})" if count else name)
    prefill, decode = (
        [_curve(name, points, column) for name, (_, points) in zip(names, curves, strict=True)]
        for column in ("prefill", "gen")
    )
    shape = (1, 2) if size[0] >= size[1] else (2, 1)
    with matplotlib.rc_context({"font.size": 11, "font.family": "sans-serif", "axes.edgecolor": INK}):
        return speed_figure(prefill, decode, (size[0] * 72 / 96, size[1] * 72 / 96), *shape, title=printable(title))


def _curve(name: str, points: Sequence[Point], column: str) -> Curve:
    """Return the curve of "prefill" or "gen" speeds."""
    drawn, warned = [], []
    for point in points:
        value, band = getattr(point, f"{column}_tps"), getattr(point, f"{column}_band")
        drawn.append((point.ctx, value, *(band or (value, value))))
        if codes := point.warnings.get(f"{column}_tps"):
            warned.append((point.ctx, codes))
    return Curve(name, tuple(drawn), tuple(warned))


def save(figure: Figure, file: Path) -> None:
    """Write a figure to a file, the same bytes for the same data; raises DataError if that fails."""
    import matplotlib

    from ds4ref.console.common import atomic_output

    kind = file.suffix[1:].lower()
    # no date, and a fixed salt for element ids: the same data gives the same file
    stamp = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": {}}[kind]
    with matplotlib.rc_context({"svg.hashsalt": "ds4-bench", "svg.fonttype": "none"}):
        try:
            with atomic_output(str(file)) as out:
                figure.savefig(out, format=kind, metadata=stamp, dpi=192 if kind == "png" else 96)
        except OSError as error:
            raise DataError(f"cannot write {file}: {error.strerror or error}") from None
