"""Compiled code of the CUDA kernels, and the speed it allows: no GPU is needed.

    python -m benchmarks.cuda_code                     the stored table, and what it predicts
    python -m benchmarks.cuda_code --write             compile everything and store the result: minutes
    python -m benchmarks.cuda_code --arch sm_90 --json one architecture, to stdout

Every kernel that a decoded token of DeepSeek V4 Flash launches (``cuda_launches``) is compiled for three architectures:
registers, spills, shared memory, occupancy, SASS. A few blocks of its real grid are also run here, on the emitted PTX,
which tells how many instructions warps execute; ``cuda_price`` turns them into time. Stored in ``cuda_code.json``,
which tests/benchmarks/test_cuda_code.py checks. Four chunks of a prompt are priced the same way (``cuda_prefill``).
A row carries a digest of what was compiled and launched: if it equals
the stored row's, by the same versions, only NVVM runs, and an interrupted ``--write`` resumes with the next
architecture.
"""

from __future__ import annotations

import argparse
import hashlib
import inspect
import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, cached_property
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ds4ref.files import atomic_write

from .cuda_compile import Built, assembled, missing, ptx_of
from .cuda_prefill import CHUNK, print_prompt
from .cuda_price import COMPILED, DEVICES, RESERVED, UNITS, Device, fits, occupancy, predicted, prefill_shares, token

TABLE = Path(__file__).with_name("cuda_code.json")
PACKAGES = ("numba-cuda", "nvidia-nvvm", "nvidia-cuda-nvcc", "nvidia-cuda-nvdisasm")
CASES = ("q2/ds4", "q2/ds4/2048", "mixed/ds4", "q2/exact")
"""Recipe of the file, numerics mode, and depth of a decoded token (8,192 unless it says another)."""
PREFILL = "prefill"
"""The case of products with many tokens (``cuda_launches.PREFILL``)."""
PROMPTS = tuple(f"prompt/q2/ds4/{CHUNK}/{pos}" for pos in range(0, 8192, CHUNK))
"""Chunks of a prompt: recipe, mode, tokens, position."""


_KINDS = [
    ("convert", r"I2F|F2I|F2F|MUFU|POPC|FLO|I2I|FRND"),
    ("multiply", r"IMAD|IDP|IMUL"),
    ("double", r"DADD|DFMA|DMUL|DSETP|DMNMX"),
    ("tensor", r"HMMA"),
    ("tensor8", r"IMMA"),
    ("float", r"FFMA|FADD|FMUL|HADD2|HFMA2|HMUL2"),
    ("memory", r"LDS|STS|LDG|STG|LDGSTS|LD\b|ST\b|SHFL|ATOM|RED|LDC|LDL|STL|LDSM"),
    (
        "integer",
        r"IADD|LOP3|SHF|PRMT|ISETP|FSETP|SEL|FSEL|MNMX|IMNMX|FMNMX|VIMNMX|LEA|MOV|IABS|SGXT|BMSK|VIADD|PLOP3|P2R|R2P|VOTE",
    ),
]
SAMPLED = 6
"""Blocks of a grid to run for counting instructions: some get more work than others."""
SAMPLED_PROMPT = 12
"""The same of a chunk of a prompt, whose tiles of experts may be empty."""
SAMPLED_ALIKE = {r"mat\S+\.multiply": 1, r"attending|indexing_many": 3}
"""Blocks to run of other kernels of a chunk, by name: those whose blocks are alike, and cost most here."""


def kind_of(line: str) -> tuple[str, float]:
    """Which unit a SASS instruction needs ("" for none that counts), and for how many of its turns."""
    name = line.split(None, 2)[1] if line.startswith("@") else line.split(None, 1)[0]
    if name.startswith("U"):  # the uniform datapath
        return "", 0.0
    for kind, pattern in _KINDS:
        if re.match(pattern, name):
            if kind.startswith("tensor"):  # of half the depth: ptxas cut an mma in two
                return kind, 0.5 if re.search(r"\.(1688|16816\.S8)\b", name) else 1.0
            if name.startswith("LDSM"):  # matrices of 128 bytes
                return kind, 4.0 if name.endswith(".4") else 2.0 if name.endswith(".2") else 1.0
            wide = 4.0 if name.startswith(("LDS", "STS")) and ".128" in name else 2.0 if ".64" in name else 1.0
            return kind, wide if kind == "memory" else 1.0
    return "", 0.0


def reached(line: str) -> int:
    """How many bytes of global memory a SASS instruction reaches with all lanes."""
    name = line.split(None, 2)[1] if line.startswith("@") else line.split(None, 1)[0]
    if not re.match(r"LDG|STG|LDGSTS|LD\b|ST\b|ATOM|RED", name):
        return 0
    return 32 * (16 if ".128" in name else 8 if ".64" in name else 4)


def code_of(lines: Sequence[str]) -> list[str]:
    """Return the instructions alone, without padding."""
    return [line for line, counts in zip(lines, are_code(lines), strict=True) if counts]


def are_code(lines: Sequence[str]) -> list[bool]:
    """Which lines are instructions: not labels, not padding, whose end is a branch to itself."""
    found = []
    for line, before in zip(lines, ("", *lines), strict=False):
        itself = line.startswith("BRA ") and before.endswith(":") and f"({before[:-1]})" in line
        found.append(not (line.endswith(":") or itself or re.match(r"(@\S+ )?NOP", line)))
    return found


def ptx_loops(body: list[Any]) -> list[tuple[int, int]]:
    """First and last instruction of the loops of a kernel's PTX, the smaller ones first."""
    from tests.kernels.cuda.lowering.ptx import Label

    labels = {item.name: number for number, item in enumerate(body) if isinstance(item, Label)}
    spans = {
        (labels[item.operands[0]], number)
        for number, item in enumerate(body)
        if not isinstance(item, Label) and item.op[0] == "bra" and labels[item.operands[0]] < number
    }
    return sorted(spans, key=lambda span: span[1] - span[0])


MARKS = (
    (r"IDP", ("dp4a", "dp2a"), ()),
    (r"HMMA|IMMA", ("mma",), ()),
    (r"LDGSTS", ("cp",), ("shared",)),
    (r"LDG\b", ("ld",), ("global",)),
)
"""Instructions that the compiler neither adds nor removes, in SASS and in PTX (name, and required modifiers): a loop
with more of them in SASS was unrolled. The first kind that a loop has counts."""


def unrolled(sass: Sequence[str], ptx: Sequence[Any]) -> float:
    """How often ptxas wrote out a loop, by what it has of both."""
    for pattern, names, parts in MARKS:
        there = sum(item.op[0] in names and all(part in item.op for part in parts) for item in ptx)
        if there:
            return max(1.0, sum(bool(re.match(rf"(@\S+ )?({pattern})", line)) for line in sass) / there)
    return 1.0


class Executed(NamedTuple):
    """Counts of one launch: warp instructions of all its blocks, the turns of each unit they take, the instructions of
    the warp of a block that runs most, and the bytes that loads and stores could reach at most."""

    instructions: float
    units: dict[str, float]
    longest: float
    reach: float


class Compiled:
    """A kernel for one signature: its PTX and, on demand, its machine code and a translation that counts."""

    def __init__(self, launch: Any, cc: tuple[int, int]):
        self.text = ptx_of(launch.kernel, launch.signature, cc)
        self.cc, self.limit = cc, launch.kernel.targetoptions.get("max_registers")

    @cached_property
    def built(self) -> Built:
        return assembled(self.text, self.cc, self.limit)

    def digest(self, launch: Any) -> str:
        """Hash the code and what decides how often its instructions run.

        Source positions are left out and functions numbered, because Numba's names for them depend on what was compiled
        before.
        """
        lines = (line.strip() for line in self.text.partition("\n\t.section")[0].splitlines())
        code = "\n".join(line for line in lines if line and not line.startswith((".loc", ".file", "//")))
        names: dict[str, str] = {}
        code = re.sub(r"_Z\w+", lambda found: names.setdefault(found[0], f"_{len(names)}"), code)
        sizes = launch.grid, launch.block, launch.dynamic, launch.numbers, launch.arrays, launch.weights, given(launch)
        parameters = method(), self.limit, sizes
        return hashlib.sha256(f"{code}{parameters}".encode()).hexdigest()[:16]

    @cached_property
    def lowered(self) -> Any:
        from tests.kernels.cuda.lowering.lowered import Lowered

        return Lowered(self.text, counting=True)


def sampled_of(launch: Any) -> int:
    """How many blocks of a launch of a prompt to run."""
    for pattern, blocks in SAMPLED_ALIKE.items():
        if re.match(pattern, launch.name) and launch.weights[1] <= 1:
            return blocks
    return SAMPLED_PROMPT


def given(launch: Any) -> str:
    """Hash the values that a launch is given: they decide how often its instructions run, too."""
    known = [values.tobytes() for values in launch.inputs if values is not None]
    return hashlib.sha256(b"".join(known)).hexdigest() if known else ""


@cache
def method() -> str:
    """Return the source of the functions that make rows: digests change with it."""
    counting: tuple[Any, ...] = (kind_of, reached, are_code, ptx_loops, unrolled, often, executed, occupancy, described)
    numbers = _KINDS, MARKS, SAMPLED, SAMPLED_PROMPT, SAMPLED_ALIKE, RESERVED
    return "".join(inspect.getsource(function) for function in counting) + repr(numbers)


def often(body: list[Any], ran: Sequence[int], built: Built) -> list[float]:
    """How often each line of ``built.sass`` is executed, given how often each instruction of the PTX was.

    Both know the line of the kernel's source that they are from. An instruction of SASS runs as often as those of PTX
    from its line do on average, over the number of copies of the smallest loop around them that ptxas wrote out; one
    whose line PTX does not have, as often as the one before it; shuffles of warps whose lanes are not together (behind
    BRA.DIV), never.
    """
    from tests.kernels.cuda.lowering.ptx import Label

    by_line: dict[int, list[int]] = {}
    for number, item in enumerate(body):
        if not isinstance(item, Label):
            by_line.setdefault(item.line, []).append(number)
    rate = {line: sum(ran[n] for n in numbers) / len(numbers) for line, numbers in by_line.items()}
    around: dict[int, tuple[int, int]] = {}
    loops = ptx_loops(body)
    for line, numbers in by_line.items():
        middle = numbers[len(numbers) // 2]
        around[line] = next((span for span in loops if span[0] <= middle <= span[1]), (0, 0))
    for span in set(around.values()) - {(0, 0)}:
        lines = {line for line, its in around.items() if its == span}
        sass = [text for text, line in zip(built.sass, built.lines, strict=True) if line in lines]
        copies = unrolled(sass, [body[n] for line in lines for n in by_line[line]])
        for line in lines:
            rate[line] /= copies
    found, last, apart = [], 0.0, False
    parted = {match[1] for text in built.sass if (match := re.search(r"BRA\.DIV.*?(\.L_x_\w+)", text))}
    for text, line, counts in zip(built.sass, built.lines, are_code(built.sass), strict=True):
        apart = apart or text[:-1] in parted
        last = rate.get(line, last)
        found.append(last if counts and not apart else 0.0)
        apart = apart and not text.startswith("BRA")
    return found


def _leaf_kinds(kinds: Iterable[Any]) -> list[Any]:
    """Flatten types of arguments, replacing tuples by their items."""
    return [leaf for kind in kinds for leaf in (_leaf_kinds(kind) if hasattr(kind, "types") else [kind])]


def executed(launch: Any, compiled: Compiled, sampled: int = SAMPLED) -> Executed:
    """Run a few blocks of ``launch`` on their PTX, evenly from its grid, and carry what their warps executed over to
    SASS (``often``). Inputs of the token or chunk have their values, all other arrays are zeros."""
    from tests.kernels.cuda.lowering.lowered import flattened

    lowered = compiled.lowered
    lowered.counts.passed[:] = 0
    arrays: list[np.ndarray] = []
    numbers: list[bytes] = []
    kinds = _leaf_kinds(launch.signature.args)
    for number, array, known, kind in zip(launch.numbers, launch.arrays, launch.inputs, kinds, strict=True):
        value = number if array is None else np.zeros(*array) if known is None else known
        arrays += [] if array is None else [value]
        numbers += flattened(value, kind)
    grid, block = ((*size, 1, 1)[:3] for size in (launch.grid, launch.block))
    blocks = int(np.prod(grid))
    apart = max(1, blocks // sampled)
    apart += apart > 1 and apart % 2 == 0  # even numbers miss every other kind of block
    lowered.run(grid, block, numbers, arrays, launch.dynamic, "forward", slack=256, apart=apart)
    ran = len(range(apart // 2, blocks, apart))
    share, body, counts = blocks / ran, lowered.module.entry.body, lowered.executed(int(np.prod(block)))
    rates = often(body, list(counts.sum(axis=0)), compiled.built)
    longest = often(body, list(counts[counts.sum(axis=1).argmax()]), compiled.built)
    turns: Counter[str] = Counter()
    reach = 0.0
    for text, rate in zip(compiled.built.sass, rates, strict=True):
        if rate:
            kind, each = kind_of(text)
            turns[kind] += each * rate * share  # type: ignore[assignment]
            reach += reached(text) * rate * share
    return Executed(sum(rates) * share, {kind: turns[kind] for kind in UNITS}, sum(longest) / ran, reach)


def tensor_products(launch: Any) -> tuple[float, bool]:
    """Return the ``mma`` instructions of a product of PREFILL_TOKENS inputs, and whether they are int8."""
    from ds4ref.kernels.cuda.products.matmat_float import multiplied_limbs

    from .cuda_launches import PREFILL_TOKENS

    fmt, count, rows, n = launch.weights
    work = float(count) * rows * n * PREFILL_TOKENS
    if launch.name.startswith("matmat."):
        return work / (16 * 8 * 32), True
    return work * multiplied_limbs(fmt) / (16 * 8 * 16), False


def survey(
    arch: str, case: str, built: dict[Any, Compiled], kept: Mapping[str, dict[str, Any]], only: str = ""
) -> list[dict[str, Any]]:
    """Return a row for every kernel and matrix that a token launches; this process then compiles for ``arch`` alone.

    ``built`` caches compiled kernels; ``kept`` are stored rows by digest, which need no more than that, and by
    identity. Kernels whose names do not match ``only`` get their stored code, or none.
    """
    from .cuda_launches import chunk_launches, prefill_launches, token_launches

    device = COMPILED[arch]
    limits = {"multiprocessors": device.multiprocessors, "shared_limit": device.shared - RESERVED}
    if case in PROMPTS:
        _, recipe, mode, tokens, pos = case.split("/")
        all_launches = chunk_launches(
            recipe=recipe, mode=mode, tokens=int(tokens), pos=int(pos), cc=device.cc, **limits
        )  # fmt: skip
    elif case == PREFILL:
        all_launches = [launch for launch in prefill_launches(**limits) if launch.name.startswith(("matmat", "limbs"))]
    else:
        recipe, mode, depth = (*case.split("/"), "8192")[:3]
        all_launches = token_launches(recipe=recipe, mode=mode, depth=int(depth), **limits)
    launches: dict[Any, list[Any]] = {}
    for launch in all_launches:
        shape = launch.kernel, launch.signature, launch.grid, launch.block, launch.dynamic, launch.weights
        if case in PROMPTS:
            shape += launch.numbers, given(launch)
        launches.setdefault(shape, []).append(launch)
    rows = []
    for launch, *repeats in launches.values():
        row: dict[str, Any] = {
            "kernel": launch.name, "case": case, "launches": 1 + len(repeats), "grid": launch.grid,
            "block": launch.block, "bytes": launch.traffic,
        }  # fmt: skip
        if launch.weights[0]:
            row["weights"] = launch.weights
        if launch.weights[0] and case == PREFILL:
            row["tensor"], row["int8"] = tensor_products(launch)
        if re.search(only, launch.name):
            key = launch.kernel, launch.signature
            if key not in built:
                print(f"{arch}: {launch.name}", file=sys.stderr, flush=True)
                built[key] = Compiled(launch, device.cc)
            row["code"] = built[key].digest(launch)
            stored = kept.get(row["code"])
            if stored is None:
                row |= described(device, launch, built[key], sampled_of(launch) if case in PROMPTS else SAMPLED)
            else:
                row |= {name: stored[name] for name in COLUMNS if name in stored}
        else:
            row |= kept.get(identity(row), {})
        if case in (PREFILL, *PROMPTS):
            row.pop("per_byte", None)  # of weights that one token reads
        rows.append(row)
    return rows


COLUMNS = (
    "registers", "stack", "spills", "shared", "sass", "blocks_held", "occupancy", "instructions", "longest", "units",
    "reach", "per_byte",
)  # fmt: skip
"""Columns that ``described`` computes."""
UNCOUNTED = ("ranking.ranks_kernel",)
"""Kernels that read places named by what they are given, which zeros do not name; once a token."""


def described(device: Device, launch: Any, compiled: Compiled, sampled: int = SAMPLED) -> dict[str, Any]:
    """What a launch's code is like, as columns of its row."""
    made = compiled.built
    threads, shared = int(np.prod(launch.block)), made.shared + launch.dynamic
    held = occupancy(device, threads, made.registers, shared)
    columns: dict[str, Any] = {
        "registers": made.registers, "stack": made.stack, "spills": made.spill_stores + made.spill_loads,
        "shared": shared, "sass": len(code_of(made.sass)), "blocks_held": held,
        "occupancy": round(held * -(-threads // 32) * 32 / device.threads, 3),
    }  # fmt: skip
    if launch.name not in UNCOUNTED:
        ran = executed(launch, compiled, sampled)
        columns["instructions"], columns["longest"] = round(ran.instructions), round(ran.longest)
        columns["units"] = {kind: round(turns) for kind, turns in ran.units.items()}
        columns["reach"] = round(ran.reach)
    if launch.weights[0]:
        columns["per_byte"] = round(ran.instructions * 32 / launch.traffic, 3)
    return columns


def versions() -> dict[str, str]:
    """Return the versions of the compiler packages."""
    by_package = {}
    for name in PACKAGES:
        try:
            by_package[name] = version(name)
        except PackageNotFoundError:
            by_package[name] = "none"
    return by_package


def kept_kernels() -> dict[str, list[dict[str, Any]]]:
    """Return the stored rows by architecture; none if other versions made them."""
    if not TABLE.exists():
        return {}
    table: dict[str, Any] = json.loads(TABLE.read_text())
    kernels: dict[str, list[dict[str, Any]]] = table["kernels"]
    return kernels if table["versions"] == versions() else {}


def keep(arch: str, rows: list[dict[str, Any]]) -> None:
    """Write the table with these rows for ``arch``."""
    kernels = kept_kernels() | {arch: rows}
    lines = [
        f'  "{name}": [\n' + ",\n".join("    " + json.dumps(row) for row in kernels[name]) + "\n  ]"
        for name in COMPILED
        if name in kernels
    ]
    text = '{"versions": ' + json.dumps(versions()) + ',\n "kernels": {\n' + ",\n".join(lines) + "\n}}\n"
    with atomic_write(TABLE) as file:
        file.write(text.encode())


def identity(row: Mapping[str, Any]) -> str:
    """Return a key for which launch of which token a row is."""
    return json.dumps([row.get(name) for name in ("case", "kernel", "grid", "block", "bytes", "weights")])


def surveyed(arch: str, cases: Sequence[str], only: str = "") -> list[dict[str, Any]]:
    """Survey several tokens, reusing stored rows."""
    stored = [row for row in kept_kernels().get(arch, ()) if "code" in row]
    kept = {row["code"]: row for row in stored} | {identity(row): row for row in stored}
    built: dict[Any, Compiled] = {}
    return [row for case in cases for row in survey(arch, case, built, kept, only)]


def printed(table: dict[str, Any]) -> None:
    """Print the table."""
    for arch, rows in table["kernels"].items():
        device = COMPILED[arch]
        print(f"\n{arch}: {device.name}, {device.bandwidth:.0f} GB/s")
        print(
            f"{'kernel':34} {'weights':22} {'regs':>4} {'spill':>5} {'shared':>6} {'held':>4} {'occ':>5} {'i/B':>6} "
            "issue units  launches"
        )
        for row in (row for row in rows if "registers" in row and row["case"] not in PROMPTS):
            fmt, count, height, width = row.get("weights", ("", 0, 0, 0))
            matrix = f"{fmt} {count}x{height}x{width}" if fmt else ""
            shares = ("", "")
            if "weights" in row and "instructions" in row and "tensor" not in row:
                token_figures = predicted(device, row["bytes"], row)
                shares = f"{token_figures['issue']:.2f}", f"{token_figures['units']:.2f}"
            print(
                f"{row['kernel']:34} {matrix:22} {row['registers']:4} {row['spills']:5} {row['shared']:6} "
                f"{row['blocks_held']:4} {row['occupancy']:5.2f} {row.get('per_byte', ''):>6} {shares[0]:>5} "
                f"{shares[1]:>5} {row['launches']:9}  {row['case']}"
            )
        for row in (row for row in rows if "tensor" in row and "instructions" in row):
            shares = prefill_shares(device, row)
            text = ", ".join(f"{name} {shares[name]:.2f}" for name in ("tensor", "issue", "units", "memory"))
            fmt, _, height, width = row["weights"]
            print(f"prefill, {row['kernel']}, {height} x {width}: {1e6 * shares['seconds']:.0f} us: {text}")
        for other in (other for other in DEVICES.values() if other.arch == arch):
            for case in dict.fromkeys(row["case"] for row in rows if row["case"] not in (PREFILL, *PROMPTS)):
                found = token(other, [row for row in rows if row["case"] == case])
                print(
                    f"a token, {case}, {other.name}{'' if fits(other) else ' (which the q2 file does not fit)'}: "
                    f"{found['launches']:.0f} launches, {1e3 * found['bound']:.2f} ms to move the weights, "
                    f"{1e3 * found['perfect']:.2f} at perfect issue, {1e3 * found['predicted']:.2f} expected"
                )
            print_prompt(other, [row for row in rows if row["case"] in PROMPTS])


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cuda_code", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--write", action="store_true", help="compile for all architectures and keep the table")
    parser.add_argument("--arch", choices=list(COMPILED), help="compile for this one")
    every = ",".join((*CASES, PREFILL, *PROMPTS))
    parser.add_argument("--cases", default=every, help="recipe/mode of tokens (%(default)s)")
    parser.add_argument("--only", default="", help="compile kernels whose names match this; others are as kept")
    parser.add_argument("--json", action="store_true", help="with --arch: rows to stdout, nothing else")
    args = parser.parse_args()
    if args.arch or args.write:
        reason = missing()
        if reason is not None:
            print(f"cuda_code: {reason}", file=sys.stderr)
            return 1
    if args.arch:
        rows = surveyed(args.arch, args.cases.split(","), args.only)
        if args.json:
            json.dump(rows, sys.stdout)
        else:
            printed({"kernels": {args.arch: rows}})
        return 0
    if args.write:

        def made(arch: str) -> list[dict[str, Any]]:
            command = [sys.executable, "-m", "benchmarks.cuda_code", "--arch", arch, "--cases", args.cases, "--json"]
            command += ["--only", args.only]
            done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
            rows: list[dict[str, Any]] = json.loads(done.stdout)
            return rows

        # a process each: Numba keeps device functions for one architecture; two at a time, for one core each
        with ThreadPoolExecutor(2) as pool:
            for arch, rows in zip(COMPILED, pool.map(made, COMPILED), strict=True):
                keep(arch, rows)
    elif not TABLE.exists():
        print("cuda_code: no table is kept: --write makes it", file=sys.stderr)
        return 1
    printed(json.loads(TABLE.read_text()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
