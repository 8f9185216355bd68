"""What a prompt should take on a GPU, by part, from the launches of its chunks: no GPU is needed.

    parts(DEVICES["H200"], rows)      seconds by part of rows of cuda_code.json, at perfect issue and as expected
    python -m benchmarks.cuda_code    prints them for every GPU

A chunk is launched op by op (it is not recorded), and every launch is priced as those of a token are (``cuda_price``).
Experts are assumed to be chosen equally often. The host launches ahead of the device; what it takes is HOST a launch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from .cuda_price import CYCLES, Device, fits, price

CHUNK = 2048
"""Tokens of a chunk."""
HOST = 43e-6, 66e-6
"""Seconds from one launch to the next of Python alone, measured on the stand-in for the driver (cuda.md)."""

PARTS = {
    "attention": ("attending",),
    "indexer": ("indexing",),
    "streams": ("hyper.", "plain.mix", "mixing."),
    "packing": ("packing.", "limbs.", "halving.", "matmat_half.split"),
    "routing": ("routing.route", "routing.count", "grouping."),
}
"""Kernels of a part, by how their names begin. What has weights and is none of these is a product."""
ORDER = ("dense", "experts in", "experts out", *PARTS, "rest")


class Seconds(NamedTuple):
    """Of some launches: how many, and their seconds at perfect issue and expected (``cuda_price.CYCLES``)."""

    launches: int
    perfect: float
    expected: float


def part_of(row: Mapping[str, Any], width: int) -> str:
    """Return the part that a launch belongs to; ``width`` is that of the model's vectors."""
    name = row["kernel"]
    for part, beginnings in PARTS.items():
        if name.startswith(beginnings):
            return part
    if name == "tiling._add_slots":
        return "experts out"
    _, count, _, cols = row.get("weights", ("", 0, 0, 0))
    if count > 1 and not name.startswith("embedding."):
        return "experts in" if cols == width else "experts out"
    return "dense" if name.startswith(("matmat", "matvec", "plain")) else "rest"


def parts(device: Device, rows: Iterable[Mapping[str, Any]], width: int = 4096) -> dict[str, Seconds]:
    """Return what each part of these rows takes."""
    found = dict.fromkeys(ORDER, Seconds(0, 0.0, 0.0))
    for row in rows:
        part, count = part_of(row, width), row["launches"]
        launches, perfect, expected = found[part]
        found[part] = Seconds(
            launches + count,
            perfect + count * price(device, row, 1.0).seconds,
            expected + count * price(device, row, CYCLES).seconds,
        )
    return found


def print_prompt(device: Device, rows: list[dict[str, Any]]) -> None:
    """Print what a prompt, the chunks of ``rows``, takes on a device, by part."""
    chunks = len({row["case"] for row in rows})
    if not chunks:
        return
    found = parts(device, rows)
    tokens = chunks * CHUNK
    launches, perfect, expected = (sum(its[i] for its in found.values()) for i in range(3))
    where = device.name + ("" if fits(device) else " (which the q2 file does not fit)")
    print(
        f"a prompt of {tokens} in chunks of {CHUNK}, {where}: {tokens / perfect:.0f} tokens/s at perfect issue, "
        f"{tokens / expected:.0f} expected; the host {1e3 * HOST[0] * launches / chunks:.0f} to "
        f"{1e3 * HOST[1] * launches / chunks:.0f} ms a chunk of {1e3 * expected / chunks:.0f}, for "
        f"{launches / chunks:.0f} launches"
    )
    print(
        "    ms a chunk, at perfect issue and expected, launches: "
        + "; ".join(
            f"{part} {1e3 * its.perfect / chunks:.1f}, {1e3 * its.expected / chunks:.1f}, {its.launches / chunks:.0f}"
            for part, its in found.items()
        )
    )
