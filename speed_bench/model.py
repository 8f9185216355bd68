"""``ds4-bench model``: computes upper bounds of prefill and decode speed on a machine.

The bound is the roofline of ``ds4ref.costs``: reading the bytes at the machine's bandwidth, or computing the operations
at its arithmetic peaks, whichever takes longer. Of the machines in ``machines`` only the bandwidth is known; without
--int8 and --f32, arithmetic does not limit them.
"""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Sequence
from typing import Any

from ds4ref.console.flags import add
from ds4ref.console.options import INT_MAX, Parser, choice, integers, number, parsed
from ds4ref.console.tool import parser, rows
from ds4ref.errors import UsageError

from .machines import MACHINES

PROG = "ds4-bench model"
DEPTHS = "2048,8192,32768,65536,131072,1048576"
UNLIMITED = 1e18
V41 = "flash41"
"""Name of V4.1 Flash."""
HEADINGS = "context", "GB a token", "decode t/s", "bound by", "prefill t/s", "bound by"

EXAMPLES = (
    "--machine h200                   bound of Flash q2 at several depths",
    "--machine m3-ultra --shape pro   of Pro q2",
    "--gbs 500 --int8 30000 --f32 15000 --recipe q4",
    "--machine here -m model.gguf",
)


def model_parser() -> Parser:
    """Return the parser of ``ds4-bench model``."""
    about = "Tokens per second that a machine could reach at best with a full model."
    options = parser(PROG, about, "[options]", *EXAMPLES)
    named = f'a known machine: {", ".join(MACHINES)}; "here" is this one, measured'
    options.add_argument("--machine", metavar="NAME", type=choice(*MACHINES, "here"), help=named)
    options.add_argument("--gbs", metavar="X", type=number(1e-3, 1e9), help="read bandwidth, GB/s")
    options.add_argument("--int8", metavar="X", type=number(1e-3, 1e12), help="int8 peak, GOP/s (not limiting)")
    options.add_argument("--f32", metavar="X", type=number(1e-3, 1e12), help="float32 peak, GFLOP/s (not limiting)")
    add(
        options,
        "--recipe",
        type=choice("q2", "q4", "mixed", "published"),
        default="q2",
        help="a published model with these experts: q2, q4, mixed; of flash41 also published, DeepSeek's formats (q2)",
    )
    add(options, "--shape", type=choice("flash", "pro", V41), help=f"which published model: flash, pro, {V41} (flash)")
    add(options, "--model", help="a model file instead")
    options.add_argument("--float", action="store_true", help="float32 activations (numerics exact and qat)")
    add(options, "--depths", type=integers(1, INT_MAX), default=integers()(DEPTHS), help=f"comma list ({DEPTHS})")
    add(options, "--store", help="run store that knows this machine's peaks (the user's own)")
    add(options, "--json")
    return options


def model_command(argv: Sequence[str]) -> int:
    """Run ``ds4-bench model``; return the exit code."""
    args = parsed(model_parser(), argv)
    if args is None:
        return 0
    if args.machine is None and args.gbs is None:
        raise UsageError("a machine is needed: --machine NAME or --gbs X")
    bounds = predict(args, args.depths)
    cells = [
        [f"{b['depth']:,}", f"{b['decode_bytes'] / 1e9:.2f}", f"{b['decode_tps']:.2f}", b["decode_binds"],
         f"{b['prefill_tps']:.1f}", b["prefill_binds"]]
        for b in bounds
    ]  # fmt: skip
    print(json.dumps(bounds) if args.json else rows(HEADINGS, cells))
    return 0


def predict(args: Namespace, depths: Sequence[int]) -> list[dict[str, Any]]:
    """Return the bounds at each depth as dicts, for a machine and a model chosen by the options ``args``.

    They concern a decode step at this depth, and the prefill of the 2048 tokens before it.
    """
    from ds4ref.archs import costs_of
    from ds4ref.archs.deepseek4.costs import Costs
    from ds4ref.archs.deepseek4.shape import PUBLISHED
    from ds4ref.costs import Costs as AnyCosts
    from ds4ref.costs import Peaks

    peaks = _peaks(args)
    costs: AnyCosts
    if args.model is not None:
        from ds4ref.weights import open_source

        with open_source(args.model) as source:
            costs = costs_of(source, not args.float)
    elif args.shape == V41:
        from ds4ref.archs.deepseek41.costs import Costs as CostsOfV41
        from ds4ref.archs.deepseek41.shape import FLASH

        costs = CostsOfV41.of_recipe(FLASH, args.recipe, not args.float)
    else:
        costs = Costs.of_recipe(PUBLISHED[args.shape], args.recipe, not args.float)
    limits = Peaks(peaks["read_gbs"], peaks["int8_gops"] or UNLIMITED, peaks["f32_gflops"] or UNLIMITED)
    bounds = []
    for depth in depths:
        work, first = costs.decode(depth), max(0, depth - 2048)
        decode, prefill = work.bound(limits), costs.prefill(first, depth, 2048).bound(limits)
        bounds.append(
            {
                "machine": peaks["name"], "depth": depth, "decode_bytes": round(work.bytes),
                "decode_tps": 1 / decode.seconds, "decode_binds": decode.binds,
                "prefill_tps": (depth - first) / prefill.seconds, "prefill_binds": prefill.binds,
            }
        )  # fmt: skip
    return bounds


def _peaks(args: Namespace) -> dict[str, Any]:
    if args.machine is not None and args.gbs is not None:
        raise UsageError("choose one of --machine and --gbs")
    if args.machine == "here":
        from ds4ref.environment import machine
        from ds4ref.runs.store import Store

        from .peaks import machine_peaks

        with Store.open(args.store) as store:
            measured = machine_peaks(store, machine()["cores"])
        return {"name": machine()["cpu"], **measured}
    name, read_gbs = MACHINES.get(args.machine or "", ("described", args.gbs))
    return {"name": name, "read_gbs": read_gbs, "int8_gops": args.int8, "f32_gflops": args.f32}
