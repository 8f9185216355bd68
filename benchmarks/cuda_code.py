"""What the compiler makes of the CUDA kernels, and what speed that allows: no GPU is needed.

    python -m benchmarks.cuda_code                     the kept table, and what it predicts
    python -m benchmarks.cuda_code --write             compile everything anew (minutes) and keep the result
    python -m benchmarks.cuda_code --arch sm_90 --json one architecture, to stdout

Every kernel that a decoded token of DeepSeek V4 Flash launches (``cuda_launches``) is compiled for three architectures:
registers, spills, shared memory, occupancy, SASS. Products with weights are also run here for one block of their real
grid, on the emitted PTX, which tells how many instructions a warp executes; docs/cuda.md has the formula that makes a
share of bandwidth of that. Kept in ``cuda_code.json``, which tests/benchmarks/test_cuda_code.py guards.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from collections import Counter
from functools import cached_property
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from .cuda_compile import assembled, missing, ptx_of

TABLE = Path(__file__).with_name("cuda_code.json")
PACKAGES = ("numba-cuda", "nvidia-nvvm", "nvidia-cuda-nvcc", "nvidia-cuda-nvdisasm")
CASES = ("q2/ds4", "mixed/ds4", "q2/exact")
"""Recipe of a file and numerics mode of a token."""


class Device(NamedTuple):
    """What the prediction assumes of a GPU: data sheets, and limits of its compute capability (CUDA programming guide).

    clock     GHz that it keeps under load, an assumption
    bandwidth GB/s of its memory, as advertised
    """

    name: str
    cc: tuple[int, int]
    multiprocessors: int
    clock: float
    bandwidth: float
    threads: int
    blocks: int
    shared: int


DEVICES = {
    "sm_80": Device("A100 80 GB SXM", (8, 0), 108, 1.41, 2039, 2048, 32, 164 << 10),
    "sm_90": Device("H100 SXM", (9, 0), 132, 1.755, 3350, 2048, 32, 228 << 10),
    "sm_120": Device("RTX 5090", (12, 0), 170, 2.41, 1792, 1536, 24, 100 << 10),
}

# Warp instructions that one multiprocessor starts per cycle, by kind ("Throughput of native arithmetic instructions" of
# the programming guide, over 32): all together, and what shares a unit. sm_120's integer rate counts as sm_90's.
ISSUE = 4.0
UNITS = {
    "integer": 2.0,  # adders, logic, shifts, byte permutes, comparisons: 64 lanes a cycle
    "multiply": 2.0,  # integer multiply-add and dp4a
    "float": 4.0,
    "convert": 0.5,  # conversions between types, reciprocals, roots, exponentials, counting bits
    "memory": 1.0,  # loads, stores, shuffles: 128 bytes of shared memory a cycle, so 16-byte loads count four times
}
_KINDS = [
    ("convert", r"I2F|F2I|F2F|MUFU|POPC|FLO|I2I|FRND"),
    ("multiply", r"IMAD|IDP|IMUL"),
    ("float", r"FFMA|FADD|FMUL|HADD2|HFMA2|HMUL2|HMMA|IMMA"),
    ("memory", r"LDS|STS|LDG|STG|LDGSTS|LD\b|ST\b|SHFL|ATOM|RED|LDC|LDL|STL|LDSM"),
    (
        "integer",
        r"IADD|LOP3|SHF|PRMT|ISETP|FSETP|SEL|FSEL|MNMX|IMNMX|FMNMX|VIMNMX|LEA|MOV|IABS|SGXT|BMSK|VIADD|PLOP3|P2R|R2P|VOTE",
    ),
]
RESERVED = 1024
"""Bytes of shared memory that each block costs besides its own."""
SAMPLED = 6
"""Blocks of a grid that are run to count instructions: some get more work than others."""
LAUNCH = 1.5e-6
"""Seconds between the kernels of a graph that nothing overlaps, an assumption."""


def kind_of(line: str) -> tuple[str, float]:
    """Which unit a SASS instruction needs ("" for none that counts), and for how many of its turns."""
    name = line.split(None, 2)[1] if line.startswith("@") else line.split(None, 1)[0]
    if name.startswith("U"):  # the uniform datapath
        return "", 0.0
    for kind, pattern in _KINDS:
        if re.match(pattern, name):
            wide = 4.0 if name.startswith(("LDS", "STS")) and ".128" in name else 2.0 if ".64" in name else 1.0
            return kind, wide if kind == "memory" else 1.0
    return "", 0.0


def sass_loop(lines: tuple[str, ...]) -> tuple[int, int]:
    """First and last line of the widest loop; (0, 0) without one."""
    labels = {line[:-1]: number for number, line in enumerate(lines) if line.endswith(":")}
    spans = []
    for number, line in enumerate(lines):
        target = re.search(r"\bBRA.*?\(?`?\(?(\.L_x_\w+)", line)
        if target and labels.get(target[1], number) < number:
            spans.append((labels[target[1]], number))
    return max(spans, key=lambda span: span[1] - span[0], default=(0, 0))


def code_of(lines: tuple[str, ...]) -> list[str]:
    """Instructions alone, without padding."""
    return [line for line in lines if not line.endswith(":") and not re.match(r"(@\S+ )?NOP|BRA \S*$", line)]


def ptx_loop(body: list[Any]) -> tuple[int, int]:
    """The same for the kernel's PTX."""
    from tests.kernels.lowering.ptx import Label

    labels = {item.name: number for number, item in enumerate(body) if isinstance(item, Label)}
    spans = [
        (labels[item.operands[0]], number)
        for number, item in enumerate(body)
        if not isinstance(item, Label) and item.op[0] == "bra" and labels[item.operands[0]] < number
    ]
    return max(spans, key=lambda span: span[1] - span[0], default=(0, 0))


_MARKS = r"IDP|LDGSTS|HMMA|IMMA"
_PTX_MARKS = ("dp4a", "dp2a", "mma")


def marks(lines: list[str]) -> int:
    """Instructions that the compiler neither adds nor saves."""
    return sum(bool(re.match(rf"(@\S+ )?({_MARKS})", line)) for line in lines)


class Executed(NamedTuple):
    """Of one launch: warp instructions of all its blocks, and how many turns of each unit they take."""

    instructions: float
    units: dict[str, float]


class Compiled:
    """A kernel for one signature: its PTX, its machine code, and, once it is needed, a translation that counts."""

    def __init__(self, launch: Any, cc: tuple[int, int]):
        self.text = ptx_of(launch.kernel, launch.signature, cc)
        self.built = assembled(self.text, cc, launch.kernel.targetoptions.get("max_registers"))

    @cached_property
    def lowered(self) -> Any:
        from tests.kernels.lowering.lowered import Lowered

        return Lowered(self.text, counting=True)


def executed(launch: Any, compiled: Compiled) -> Executed:
    """Run a few blocks of ``launch`` on their PTX, evenly from its grid, with zeros for weights, and carry what their
    warps executed over to SASS.

    Inside the widest loop an instruction of PTX stands for as many of SASS as the loop has more of them, a loop that
    ptxas unrolled counted by dp4a, mma and copies; outside, for as many as there are on the whole.
    """
    from tests.kernels.lowering.lowered import flattened
    from tests.kernels.lowering.ptx import Label

    lowered, built = compiled.lowered, compiled.built
    lowered.counts.passed[:] = 0
    arrays: list[np.ndarray] = []
    numbers: list[bytes] = []
    for number, array, kind in zip(launch.numbers, launch.arrays, launch.signature.args, strict=True):
        value = number if array is None else np.zeros(*array)
        arrays += [] if array is None else [value]
        numbers += flattened(value, kind)
    grid, block = ((*size, 1, 1)[:3] for size in (launch.grid, launch.block))
    blocks = int(np.prod(grid))
    apart = max(1, blocks // SAMPLED)
    lowered.run(grid, block, numbers, arrays, launch.dynamic, "forward", slack=256, apart=apart)
    blocks_ran = -(-blocks // apart)
    body = lowered.module.entry.body
    ran = lowered.executed(int(np.prod(block)))
    first, last = ptx_loop(body)
    begin, end = sass_loop(built.sass)
    inside, everything = code_of(built.sass[begin : end + 1]), code_of(built.sass)
    in_loop = [n for n, item in enumerate(body) if first <= n <= last and not isinstance(item, Label)]
    ptx_size = sum(not isinstance(item, Label) for item in body)
    ptx_marks = sum(
        body[n].op[0] in _PTX_MARKS or body[n].op[:2] == ("cp", "async") and "shared" in body[n].op for n in in_loop
    )
    unrolled = max(1.0, marks(inside) / ptx_marks) if ptx_marks and inside else 1.0
    ratio = len(inside) / unrolled / len(in_loop) if in_loop and inside else 1.0
    hot = sum(ran[n] for n in in_loop) * ratio
    cold = (sum(ran) - sum(ran[n] for n in in_loop)) * len(everything) / ptx_size
    found: Counter[str] = Counter()
    for line in inside or everything:
        kind, turns = kind_of(line)
        found[kind] += turns  # type: ignore[assignment]
    size = len(inside or everything)
    total = (hot + cold) * blocks / blocks_ran
    return Executed(total, {kind: total * found[kind] / size for kind in UNITS})


def occupancy(device: Device, threads: int, registers: int, shared: int) -> int:
    """Blocks that a multiprocessor holds at once: by threads, registers (in 256s a warp) and shared memory (with the
    1 KB that each block costs)."""
    warps = -(-threads // 32)
    by_registers = 65536 // (warps * -(-max(registers, 1) * 32 // 256) * 256)
    return min(device.threads // (32 * warps), device.blocks, by_registers, device.shared // (shared + RESERVED))


def predicted(device: Device, traffic: float, ran: dict[str, Any]) -> dict[str, float]:
    """Shares of bandwidth that a launch can reach, by issue alone and by its busiest unit (docs/cuda.md)."""
    moving = traffic / (device.bandwidth * 1e9)
    cycles = device.multiprocessors * device.clock * 1e9
    issue = ran["instructions"] / (cycles * ISSUE)
    busiest = max([issue, *(turns / (cycles * UNITS[kind]) for kind, turns in ran["units"].items())])
    return {"issue": min(1.0, moving / issue), "units": min(1.0, moving / busiest)}


def survey(arch: str, case: str, built: dict[Any, Compiled], only: str = "") -> list[dict[str, Any]]:
    """A row for every kernel and matrix that a token launches; this process then compiles for ``arch`` alone. ``built``
    keeps what was compiled. Kernels whose names do not match ``only`` are listed without their code."""
    from .cuda_launches import token_launches

    device = DEVICES[arch]
    recipe, mode = case.split("/")
    limit = device.shared - RESERVED
    found = token_launches(recipe=recipe, mode=mode, multiprocessors=device.multiprocessors, shared_limit=limit)
    launches: dict[Any, list[Any]] = {}
    for launch in found:
        shape = launch.kernel, launch.signature, launch.grid, launch.block, launch.dynamic, launch.weights
        launches.setdefault(shape, []).append(launch)
    rows = []
    for launch, *more in launches.values():
        row: dict[str, Any] = {
            "kernel": launch.name, "case": case, "launches": 1 + len(more), "grid": launch.grid, "block": launch.block,
            "bytes": launch.traffic,
        }  # fmt: skip
        if launch.weights[0]:
            row["weights"] = launch.weights
        if re.search(only, launch.name):
            key = launch.kernel, launch.signature
            if key not in built:
                print(f"{arch}: {launch.name}", file=sys.stderr, flush=True)
                built[key] = Compiled(launch, device.cc)
            row |= described(device, launch, built[key])
        rows.append(row)
    return rows


def described(device: Device, launch: Any, compiled: Compiled) -> dict[str, Any]:
    """What a launch's code is like, as columns of its row."""
    made = compiled.built
    threads, shared = int(np.prod(launch.block)), made.shared + launch.dynamic
    held = occupancy(device, threads, made.registers, shared)
    columns: dict[str, Any] = {
        "registers": made.registers, "stack": made.stack, "spills": made.spill_stores + made.spill_loads,
        "shared": shared, "sass": len(code_of(made.sass)), "blocks_held": held,
        "occupancy": round(held * -(-threads // 32) * 32 / device.threads, 3),
    }  # fmt: skip
    if launch.weights[0]:
        ran = executed(launch, compiled)
        columns["instructions"] = round(ran.instructions)
        columns["units"] = {kind: round(turns) for kind, turns in ran.units.items()}
        columns["per_byte"] = round(ran.instructions * 32 / launch.traffic, 3)
    return columns


def versions() -> dict[str, str]:
    """Of what compiles."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "none"
    return found


def token(arch: str, rows: list[dict[str, Any]]) -> dict[str, float]:
    """A whole token by the rows of one mode: seconds to move its bytes, seconds predicted, the share."""
    device = DEVICES[arch]
    bound = took = 0.0
    for row in rows:
        moving = row["bytes"] / (device.bandwidth * 1e9)
        share = predicted(device, row["bytes"], row)["units"] if "instructions" in row else 1.0
        bound += row["launches"] * (moving if "weights" in row else 0.0)
        took += row["launches"] * (LAUNCH + (moving / share if row["bytes"] else 0.0))
    return {"bound": bound, "predicted": took, "share": bound / took, "launches": sum(row["launches"] for row in rows)}


def printed(table: dict[str, Any]) -> None:
    """The table for people."""
    for arch, rows in table["kernels"].items():
        device = DEVICES[arch]
        print(f"\n{arch}: {device.name}, {device.bandwidth:.0f} GB/s")
        print(
            f"{'kernel':34} {'weights':22} {'regs':>4} {'spill':>5} {'shared':>6} {'held':>4} {'occ':>5} {'i/B':>6} "
            "issue units  launches"
        )
        for row in (row for row in rows if "registers" in row):
            fmt, count, height, width = row.get("weights", ("", 0, 0, 0))
            what = f"{fmt} {count}x{height}x{width}" if fmt else ""
            shares = ("", "")
            if "instructions" in row:
                found = predicted(device, row["bytes"], row)
                shares = f"{found['issue']:.2f}", f"{found['units']:.2f}"
            print(
                f"{row['kernel']:34} {what:22} {row['registers']:4} {row['spills']:5} {row['shared']:6} "
                f"{row['blocks_held']:4} {row['occupancy']:5.2f} {row.get('per_byte', ''):>6} {shares[0]:>5} "
                f"{shares[1]:>5} {row['launches']:9}  {row['case']}"
            )
        for case in dict.fromkeys(row["case"] for row in rows):
            found = token(arch, [row for row in rows if row["case"] == case])
            print(
                f"a token, {case}: {found['launches']:.0f} launches, "
                f"{1e3 * found['bound']:.2f} ms to move the weights, "
                f"{1e3 * found['predicted']:.2f} ms predicted, share {found['share']:.2f}"
            )


def main() -> int:
    """Run it from the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cuda_code", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--write", action="store_true", help="compile for all architectures and keep the table")
    parser.add_argument("--arch", choices=list(DEVICES), help="compile for this one")
    parser.add_argument("--cases", default=",".join(CASES), help="recipe/mode of tokens (%(default)s)")
    parser.add_argument("--only", default="", help="with --arch: compile kernels whose names match this expression")
    parser.add_argument("--json", action="store_true", help="with --arch: rows to stdout, nothing else")
    args = parser.parse_args()
    if args.arch or args.write:
        reason = missing()
        if reason is not None:
            print(f"cuda_code: {reason}", file=sys.stderr)
            return 1
    if args.arch:
        built: dict[Any, Compiled] = {}
        rows = [row for case in args.cases.split(",") for row in survey(args.arch, case, built, args.only)]
        if args.json:
            json.dump(rows, sys.stdout)
        else:
            printed({"kernels": {args.arch: rows}})
        return 0
    if args.write:
        kernels: dict[str, list[Any]] = {}
        for arch in DEVICES:  # a process each: Numba keeps device functions for one architecture
            command = [sys.executable, "-m", "benchmarks.cuda_code", "--arch", arch, "--cases", args.cases, "--json"]
            done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
            kernels[arch] = json.loads(done.stdout)
        lines = [
            f'  "{arch}": [\n' + ",\n".join("    " + json.dumps(row) for row in rows) + "\n  ]"
            for arch, rows in kernels.items()
        ]
        head = json.dumps(versions())
        TABLE.write_text('{"versions": ' + head + ',\n "kernels": {\n' + ",\n".join(lines) + "\n}}\n")
    printed(json.loads(TABLE.read_text()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
