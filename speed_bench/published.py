"""Published speeds of ds4 and the machines they were measured on: facts, with their sources.

Bandwidths are the makers' peak figures. Speeds are tokens per second, decode at a depth of context. Where a source
gives a range of contexts, both ends are rows. Nothing here was measured by us.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Machine:
    """A machine and its read bandwidth in GB/s, as stated by its maker."""

    name: str
    read_gbs: float


@dataclass(frozen=True)
class PublishedRow:
    """One published measurement.

    machine       name of the machine
    depth         context depth in tokens
    prefill_tps   tokens per second of prefill, None if not published
    decode_tps    tokens per second of decode
    source        where it was published
    recipe        quantization of the model
    """

    machine: str
    depth: int
    prefill_tps: float | None
    decode_tps: float
    source: str
    recipe: str = "q2"


MACHINES = {
    "m2-ultra": Machine("M2 Ultra", 800),
    "m3-max": Machine("M3 Max", 400),
    "m3-ultra": Machine("M3 Ultra", 819),
    "m4-max": Machine("M4 Max", 546),
    "gb10": Machine("DGX Spark GB10", 273),
    "rtx-pro-6000": Machine("RTX PRO 6000", 1790),
    "h200": Machine("H200", 4800),
}

_MAY = "ds4 speed-bench, May 2026"
_README = "ds4 README, May 2026, one run of the CLI"
_LATER = "later revisions of ds4's speed-bench"

ROWS = (
    PublishedRow("m2-ultra", 2048, 410.62, 23.22, _MAY),
    PublishedRow("m2-ultra", 8192, 382.57, 22.72, _MAY),
    PublishedRow("m2-ultra", 32768, 325.77, 21.92, _MAY),
    PublishedRow("m2-ultra", 65536, 269.75, 20.43, _MAY),
    PublishedRow("m4-max", 2048, 343.76, 26.76, _MAY),
    PublishedRow("m4-max", 8192, 294.60, 26.12, _MAY),
    PublishedRow("m4-max", 32768, 247.91, 24.52, _MAY),
    PublishedRow("m4-max", 65536, 204.96, 22.92, _MAY),
    PublishedRow("m3-max", 11709, 250.11, 21.47, _README),
    PublishedRow("m3-ultra", 11709, 468.03, 27.39, _README),
    PublishedRow("m3-ultra", 12018, 448.82, 26.62, _README, "q4"),
    PublishedRow("gb10", 7047, 343.81, 13.75, _README),
    PublishedRow("gb10", 2048, 832.86, 20.58, _LATER),
    PublishedRow("gb10", 65536, 833.44, 15.27, _LATER),
    PublishedRow("m3-ultra", 2048, 640.09, 44.28, _LATER),
    PublishedRow("m3-ultra", 65536, 410.75, 34.48, _LATER),
    PublishedRow("rtx-pro-6000", 2048, 313, 35.7, "ds4 issue 107"),
    PublishedRow("rtx-pro-6000", 65536, 274, 29.6, "ds4 issue 107"),
    PublishedRow("h200", 2048, None, 70, "ds4 issue 564, tuned, depth not given"),
)
