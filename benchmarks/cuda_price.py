"""What a launch and a token should take on a GPU, by what their code executes: no GPU is needed.

    price(DEVICES["H200"], row)        seconds of one launch of a row of cuda_code.json, by resource
    token(DEVICES["H200"], rows)       of all rows of a token
    device_named("NVIDIA H200", (9, 0))

A launch takes LAUNCH and then as long as the slowest of: its bytes at the memory's bandwidth; the instructions of the
busiest multiprocessor at the rate at which schedulers start them; the turns of its busiest unit; the instructions of
its longest warp, one after the other. docs/explanation/cuda.md has the formula and what it leaves out.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple


class Device(NamedTuple):
    """A GPU as the prediction sees it: data sheet, and limits of its compute capability (CUDA programming guide).

    reported   name that the driver reports
    arch       whose code in the table it runs
    clock      GHz under load, an assumption
    bandwidth  GB/s of its memory, as advertised
    memory     GB of it, as advertised (10^9 bytes)
    """

    name: str
    reported: str
    arch: str
    multiprocessors: int
    clock: float
    bandwidth: float
    memory: float
    threads: int
    blocks: int
    shared: int

    @property
    def cc(self) -> tuple[int, int]:
        """Compute capability."""
        return int(self.arch[3:-1]), int(self.arch[-1])


_HOPPER = 2048, 32, 228 << 10
_GEFORCE = 1536, 24, 100 << 10
DEVICES = {
    device.name: device
    for device in (
        Device("A100", "NVIDIA A100-SXM4-80GB", "sm_80", 108, 1.41, 2039, 80, 2048, 32, 164 << 10),
        Device("H100", "NVIDIA H100 80GB HBM3", "sm_90", 132, 1.755, 3350, 80, *_HOPPER),
        Device("H200", "NVIDIA H200", "sm_90", 132, 1.755, 4800, 141, *_HOPPER),
        Device("RTX 5090", "NVIDIA GeForce RTX 5090", "sm_120", 170, 2.41, 1792, 32, *_GEFORCE),
        Device("RTX PRO 6000", "NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "sm_120", 188, 2.3, 1792, 96,
               *_GEFORCE),
    )
}  # fmt: skip
COMPILED = {"sm_80": DEVICES["A100"], "sm_90": DEVICES["H100"], "sm_120": DEVICES["RTX 5090"]}
"""For which device kernels of an architecture are sized and compiled."""

FILE = 80.8 * 2**30
"""Bytes of the published q2 file of DeepSeek V4 Flash."""
ROOM = 4 * 2**30
"""Bytes beside the weights: caches of a long context, results, the driver's own."""

TENSOR = {"sm_80": (0.5, 0.5), "sm_90": (1.0, 1.0), "sm_120": (0.125, 0.25)}
"""``mma`` instructions per multiprocessor and cycle, from the data sheets' dense rates: m16n8k16 of 16 bits,
accumulated in float32, and m16n8k32 of int8. On Hopper the sheets give them for ``wgmma``."""

# Warp instructions that one multiprocessor starts per cycle, by kind ("Throughput of native arithmetic instructions" of
# the programming guide, over 32): all together, and what shares a unit. sm_120's integer rate counts as sm_90's.
ISSUE = 4.0
UNITS = {
    "integer": 2.0,  # adders, logic, shifts, byte permutes, comparisons: 64 lanes a cycle
    "multiply": 2.0,  # integer multiply-add and dp4a
    "float": 4.0,
    "convert": 0.5,  # conversions between types, reciprocals, roots, exponentials, counting bits
    "memory": 1.0,  # loads, stores, shuffles: 128 bytes of shared memory a cycle, so 16-byte loads count four times
    "double": 1.0,  # float64, by architecture below
    "tensor": 1.0,  # mma of 16-bit numbers, a turn for each m16n8k16, and of int8
    "tensor8": 1.0,
}
DOUBLE = {"sm_80": 1.0, "sm_90": 2.0, "sm_120": 1 / 16}
"""Warp instructions with float64 numbers that a multiprocessor starts per cycle."""


def rate(device: Device, unit: str) -> float:
    """Return how many turns of a unit a multiprocessor of the device takes per cycle."""
    if unit == "double":
        return DOUBLE[device.arch]
    if unit.startswith("tensor"):
        return TENSOR[device.arch][unit == "tensor8"]
    return UNITS[unit]


RESERVED = 1024
"""Bytes of shared memory that each block costs besides its own."""
LAUNCH = 1.5e-6
"""Seconds between dependent kernels of a graph, an assumption."""
CYCLES = 10.0
"""Cycles from one instruction of a warp to its next: with it the token that an H200 took 26.5 ms for (commit 29583b9,
1,594 launches at depth 2,048) is priced at 26.1. Two small products that were measured alone took 6 to 7."""


def device_named(reported: str, capability: Sequence[int]) -> Device | None:
    """Return the GPU that reports this name and compute capability; None for one not known."""
    for device in DEVICES.values():
        if device.reported == reported and device.cc == tuple(capability):
            return device
    return None


def fits(device: Device, nbytes: float = FILE) -> bool:
    """Whether a file of ``nbytes`` and some room to work in fit the device's memory."""
    return nbytes + ROOM <= device.memory * 1e9


def occupancy(device: Device, threads: int, registers: int, shared: int) -> int:
    """Blocks that a multiprocessor holds at once: by threads, registers (in 256s a warp) and shared memory (with the
    1 KB that each block costs)."""
    warps = -(-threads // 32)
    by_registers = 65536 // (warps * -(-max(registers, 1) * 32 // 256) * 256)
    return min(device.threads // (32 * warps), device.blocks, by_registers, device.shared // (shared + RESERVED))


def predicted(device: Device, traffic: float, ran: dict[str, Any]) -> dict[str, float]:
    """Return shares of bandwidth that a large launch can reach, by issue alone and by its busiest unit (cuda.md)."""
    moving = traffic / (device.bandwidth * 1e9)
    cycles = device.multiprocessors * device.clock * 1e9
    issue = ran["instructions"] / (cycles * ISSUE)
    busiest = max([issue, *(turns / (cycles * rate(device, kind)) for kind, turns in ran["units"].items())])
    return {"issue": min(1.0, moving / issue), "units": min(1.0, moving / busiest)}


class Price(NamedTuple):
    """Seconds of one launch, by what takes them; the slowest counts, after LAUNCH."""

    memory: float
    issue: float
    units: float
    longest: float

    @property
    def seconds(self) -> float:
        return LAUNCH + max(self)


def price(device: Device, row: Mapping[str, Any], cycles: float = CYCLES) -> Price:
    """Price one launch of a row of the table; ``cycles`` between instructions of a warp, 1 for perfect issue. A row
    without counts has only its bytes. A launch whose blocks leave at once moves no more than its instructions can."""
    memory = min(row["bytes"], row.get("reach", row["bytes"])) / (device.bandwidth * 1e9)
    if "instructions" not in row:
        return Price(memory, 0.0, 0.0, 0.0)
    blocks, warps = math.prod(row["grid"]), -(-math.prod(row["block"]) // 32)
    held, clock = max(1, row["blocks_held"]), device.clock * 1e9
    busiest = -(-blocks // device.multiprocessors)
    part = busiest / blocks
    issue = part * row["instructions"] / (min(ISSUE, min(busiest, held) * warps) * clock)
    units = max([0.0, *(part * turns / (rate(device, kind) * clock) for kind, turns in row["units"].items())])
    return Price(memory, issue, units, -(-busiest // held) * row["longest"] * cycles / clock)


def token(device: Device, rows: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Return a whole token's figures from its rows: launches, seconds to move its weights' bytes, seconds at perfect
    issue and expected (CYCLES), and the share of the expected time that the bytes need."""
    rows = list(rows)
    bound = sum(row["launches"] * row["bytes"] / (device.bandwidth * 1e9) for row in rows if "weights" in row)
    perfect = sum(row["launches"] * price(device, row, 1.0).seconds for row in rows)
    seconds = sum(row["launches"] * price(device, row).seconds for row in rows)
    launches = sum(row["launches"] for row in rows)
    return {"bound": bound, "perfect": perfect, "predicted": seconds, "share": bound / seconds, "launches": launches}


def prefill_shares(device: Device, row: Mapping[str, Any]) -> dict[str, float]:
    """Return, for a row with many tokens, each resource's time as a share of the slowest one's; ``tensor`` 1.0 means
    bound by the tensor cores."""
    cycles = device.multiprocessors * device.clock * 1e9
    needs = {
        "tensor": row["tensor"] / (cycles * TENSOR[device.arch][row["int8"]]),
        "issue": row["instructions"] / (cycles * ISSUE),
        "units": max(turns / (cycles * rate(device, kind)) for kind, turns in row["units"].items()),
        "memory": row["bytes"] / (device.bandwidth * 1e9),
    }
    return {name: need / max(needs.values()) for name, need in needs.items()} | {"seconds": max(needs.values())}
