"""Draws the results in one or several CSVs as curves in one figure, an SVG, PNG or PDF by the file's suffix.

Speeds are drawn over depth in two panels, prefill and decode, both from zero, as in reports. Each file has a colour,
and its machine's name in the legend; a band shows the quartiles of its repetitions. For loads, throughput and time to
first token are drawn over the number of streams or the request rate, with a curve for each depth. Points with warnings
are crosses. The same input gives the same bytes.

    ds4-bench plot results/m3.csv -o m3.svg --title "M3 Max"
    ds4-bench plot --load served-*.csv -o load.svg
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ds4ref.console.curves import Curve, panels_figure, speed_figure
from ds4ref.console.plots import INK
from ds4ref.errors import DataError, UsageError
from ds4ref.runs.columns import Row
from ds4ref.runs.results import read_rows
from ds4ref.targets.wire import printable

from .machines import MACHINES

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SUFFIXES = (".svg", ".png", ".pdf")
MOST_NAMES = 3
"""Maximum number of files that a title names; of others it has the number."""
SIZE = 720, 405
"""Size in points; it makes 960 by 540 pixels, in PNGs twice as many for high-resolution screens."""
LATENCIES = {"ttft_ms": "median", "ttft_p95_ms": "95th percentile"}

Paths = Sequence[str | os.PathLike[str]]


def check_suffix(path: str | os.PathLike[str]) -> None:
    """Raise UsageError unless the path ends in .svg, .png or .pdf."""
    if Path(path).suffix.lower() not in SUFFIXES:
        raise UsageError(f"cannot plot to {path}: the name must end in {', '.join(SUFFIXES)}")


def default_title(paths: Paths) -> str:
    """Return a plot's title made from file names: ``m3_max.csv`` -> ``M3 Max t/s``; several are joined by commas."""
    names = [words(Path(path).stem) for path in paths]
    more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    return f"{', '.join(names[:MOST_NAMES])}{more} t/s"


def words(stem: str) -> str:
    """Return the name of a machine, or words for a title, from a file name without suffix: ``m3_max`` -> ``M3 Max``."""
    parts = [part for part in re.split(r"[ _-]+", printable(stem)) if part]
    known = MACHINES.get("-".join(parts).lower())
    if known is not None:
        return known[0]
    return " ".join(
        part.upper() if re.fullmatch(r"[a-z]{1,2}[0-9]+", part) else part[0].upper() + part[1:] for part in parts
    )


def plot(sources: Paths, outputs: Paths = (), title: str | None = None, load: bool = False) -> list[Path]:
    """Draw the results in CSV files; return the paths of the plots.

    outputs   files to write the plot to, by default an SVG next to the first CSV
    load      draw over the levels of a load, not over depths

    Raises DataError for bad data or a file that cannot be written, UsageError for an output of unknown suffix.
    """
    files = [Path(output) for output in outputs] or [Path(sources[0]).with_name(Path(sources[0]).stem + "_ts.svg")]
    for file in files:
        check_suffix(file)
    if load:
        common = os.path.commonprefix([Path(source).stem for source in sources]).strip(" _-.")
        heading = f"{words(common)} under load" if common else "Under load"
        figure = draw_load([row for source in sources for row in read_rows(source)], title or heading)
    else:
        curves = [(words(Path(source).stem), read_curve(source)) for source in sources]
        figure = draw(curves, title or default_title(sources))
    for file in files:
        save(figure, file)
    return files


def read_curve(path: str | os.PathLike[str]) -> list[Row]:
    """Read the points of a curve from a CSV, sorted by depth; raise DataError unless there are two different depths.

    Two rows of the same depth raise DataError, too.
    """
    rows = read_rows(path, 2)
    if any(one["ctx_tokens"] == other["ctx_tokens"] for one, other in zip(rows, rows[1:], strict=False)):
        raise DataError(f"{path}: several rows at one depth: not a curve")
    return rows


def draw(curves: Sequence[tuple[str, Sequence[Row]]], title: str) -> Figure:
    """Return the figure of speeds over depth, for curves given as (name, rows).

    Equal names get numbers. This imports matplotlib, which takes half a second.
    """
    names: list[str] = []
    for name, _ in curves:
        count = sum(other == name or other.startswith(f"{name} (") for other in names)
        names.append(f"{name} ({count + 1})" if count else name)
    named = list(zip(names, (rows for _, rows in curves), strict=True))
    prefill, decode = ([Curve.of(name, rows, column) for name, rows in named] for column in ("prefill_tps", "gen_tps"))
    with _style():
        return speed_figure(prefill, decode, SIZE, 1, 2, title=printable(title))


def levels(rows: Sequence[Row]) -> tuple[str, dict[str, list[Row]]]:
    """Sort the rows of loads into curves; return the column to draw them over, and the rows of each curve by name.

    Raises DataError if there is no curve of at least two levels.
    """
    column = "offered_rps" if all(row.get("offered_rps") for row in rows) else "streams"
    curves: dict[str, list[Row]] = {}
    for row in rows:
        if isinstance(row.get(column), (int, float)) and row.get("ttft_ms"):
            curves.setdefault(f"{row['ctx_tokens']:,} tokens", []).append(row)
    curves = {name: curve for name, curve in curves.items() if len({row[column] for row in curve}) > 1}
    if not curves:
        raise DataError("a load plot needs two levels (streams or request rates) of an endpoint")
    return column, curves


def draw_load(rows: Sequence[Row], title: str) -> Figure:
    """Return the figure of throughput and latency under load, for the rows of all CSVs."""
    x, curves = levels(rows)
    latencies = [
        Curve.of(f"{label}, {name}" if len(curves) > 1 else label, curve, column, x)
        for name, curve in curves.items()
        for column, label in LATENCIES.items()
        if all(row.get(column) for row in curve)
    ]
    panels = [
        ("all streams, tokens/s", [Curve.of(name, curve, "total_tps", x) for name, curve in curves.items()]),
        ("time to first token, ms", latencies),
    ]

    with _style():
        label = "streams at once" if x == "streams" else "requests per second"
        return panels_figure(panels, SIZE, 1, 2, printable(title), label)


def _style() -> Any:
    import matplotlib

    return matplotlib.rc_context({"font.size": 11, "font.family": "sans-serif", "axes.edgecolor": INK})


def save(figure: Figure, file: Path) -> None:
    """Write a figure to a file; the same data gives the same bytes. Raises DataError if writing fails."""
    import matplotlib

    from ds4ref.console.common import atomic_output

    kind = file.suffix[1:].lower()
    # no date, and a constant seed for the ids of SVG elements, so that the same data gives the same file
    stamp = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": {}}[kind]
    with matplotlib.rc_context({"svg.hashsalt": "ds4-bench", "svg.fonttype": "none"}):
        try:
            with atomic_output(str(file)) as out:
                figure.savefig(out, format=kind, metadata=stamp, dpi=192 if kind == "png" else 96)
        except OSError as error:
            raise DataError(f"cannot write {file}: {error.strerror or error}") from None
