"""ds4's published rows: depth, prefill and decode speed on an M2 Ultra and an M4 Max, kvcache_bytes.

The table gives seven of the 32 depths; between them ``sweep`` interpolates, with kvcache_bytes by its formula.
"""

from __future__ import annotations

ROWS = (
    (2048, 410.62, 23.22, 343.76, 26.76, 52_184_460),
    (4096, 389.21, 23.19, 303.46, 26.52, 80_373_132),
    (8192, 382.57, 22.72, 294.60, 26.12, 136_750_476),
    (16384, 362.43, 22.72, 277.04, 25.57, 249_505_164),
    (32768, 325.77, 21.92, 247.91, 24.52, 475_014_540),
    (49152, 294.76, 21.27, 224.31, 23.78, 700_523_916),
    (65536, 269.75, 20.43, 204.96, 22.92, 926_033_292),
)
HEADER = "ctx_tokens,prefill_tokens,prefill_tps,gen_tokens,gen_tps,kvcache_bytes"


def as_ds4(rows=None) -> str:
    """A CSV of (depth, prefill, decode, kvcache_bytes) as ds4 writes it; by default seven depths of the M2 Ultra."""
    rows = rows or [(row[0], row[1], row[2], row[5]) for row in ROWS]
    return HEADER + "\n" + "".join(f"{n},2048,{p:.2f},128,{g:.2f},{b}\n" for n, p, g, b in rows)


def sweep(machine: str) -> list[tuple[int, float, float, int]]:
    """All 32 rows of "m2" or "m4"."""
    import numpy as np

    column = {"m2": 1, "m4": 3}[machine]
    known = [row[0] for row in ROWS]
    depths = range(2048, 65537, 2048)
    speeds = [np.interp(depths, known, [row[c] for row in ROWS]) for c in (column, column + 1)]
    return [(n, float(p), float(g), 23_995_788 + 13_764 * n) for n, p, g in zip(depths, *speeds, strict=True)]


def m2_ultra() -> bytes:
    """As ds4-bench wrote it: LF, two decimals."""
    return as_ds4(sweep("m2")).encode()


def m4_max() -> bytes:
    """As a spreadsheet saved it: byte order mark, CRLF, no final newline, trailing zeros stripped."""
    lines = [f"{n},2048,{round(p, 2):g},128,{round(g, 2):g},{k}" for n, p, g, k in sweep("m4")]
    return b"\xef\xbb\xbf" + "\r\n".join([HEADER, *lines]).encode()
