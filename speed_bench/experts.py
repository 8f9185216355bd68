"""``ds4-bench experts``: what a cache of experts would find in memory, and read from disk, of recorded routing.

    ds4 imatrix prompts.txt -m model.gguf --routing routing.npz
    ds4-bench experts routing.npz --cache 16GB,32GB --disk 3GB --compute 80

No model is run: the orders in which experts leave the cache are those of ``ds4ref.residency``, which the engine uses.
Tokens per second are an upper bound by reading, or by reading and computing in turn.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

from ds4ref.console.flags import add
from ds4ref.console.options import Parser, number, size
from ds4ref.console.tables import Column, fitted
from ds4ref.console.tool import UNBOUNDED
from ds4ref.errors import UsageError

PROG = "ds4-bench experts"
SHARES = 0.1, 0.25, 0.5, 0.75
"""Sizes of the cache that are tried if none is named, as parts of all experts."""


def build_parser() -> Parser:
    """Return the parser of the command."""
    parser = Parser(
        PROG,
        usage=f"{PROG} ROUTING [--cache SIZE,...] [--disk SIZE] [--compute MS] [--json]",
        description="Hit rates of a cache of experts, by the order in which they leave it, on recorded routing.",
        epilog="recent: least recently used; fading: the engine's order; oracle: sees the future.\n"
        "ROUTING is written by ds4 imatrix --routing.",
        unavailable={},
    )
    parser.add_argument("file", metavar="ROUTING", nargs="*", help="recorded routing, .npz")
    one = size()
    parser.add_argument(
        "--cache",
        metavar="SIZE,...",
        type=lambda text: [one(part.strip()) for part in text.split(",")],
        help="sizes of the cache, such as 16GB,32GB (a tenth to three quarters of all experts)",
    )
    parser.add_argument(
        "--disk", metavar="SIZE", type=size(), help="bytes that the disk reads in a second, such as 3GB"
    )
    parser.add_argument(
        "--compute", metavar="MS", type=number(0, 1e6), default=0.0, help="milliseconds of computing a token (0)"
    )
    add(parser, "--json")
    add(parser, "--help")
    return parser


def outcomes(path: str, caches: Sequence[int] | None, disk: int | None, compute: float) -> list[dict[str, Any]]:
    """Return a row for each size of the cache in bytes and each order; ``compute`` is in milliseconds a token."""
    from ds4ref.residency.simulation import Routing, orders, simulate

    routing = Routing.read(path)
    everything = int(routing.bytes.sum()) * routing.experts
    rows = []
    for cache in caches or [int(everything * share) for share in SHARES]:
        for name, order in orders(routing).items():
            found = simulate(routing, cache, order)
            read = found.bytes_read / len(routing.ids)
            row = {"cache_bytes": cache, "order": name, "hit_rate": found.rate, "bytes_per_token": read}
            if disk is not None:
                seconds = read / disk + compute / 1e3
                row["tps"] = 1 / seconds if seconds else None
            rows.append(row)
    return rows


def experts(argv: Sequence[str]) -> int:
    """Run the command; return the exit code."""
    parser = build_parser()
    args = parser.parse(argv)
    if args.help:
        sys.stdout.write(parser.format_help())
        return 0
    if len(args.file) != 1:
        raise UsageError("one file of recorded routing is needed")
    rows = outcomes(args.file[0], args.cache, args.disk, args.compute)
    if args.json:
        print(json.dumps(rows))
        return 0
    headings = "cache, GB", "order", "hits, %", "MB a token", "tokens/s"
    cells = [
        [
            f"{row['cache_bytes'] / 1e9:.4g}",
            row["order"],
            f"{100 * row['hit_rate']:.1f}",
            f"{row['bytes_per_token'] / 1e6:.4g}",
            f"{row['tps']:.2f}" if row.get("tps") else "",
        ]
        for row in rows
    ]
    print(fitted([Column(heading, right=heading != "order") for heading in headings], cells, UNBOUNDED))
    return 0
