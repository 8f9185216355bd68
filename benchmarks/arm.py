"""Estimated speed of row kernels and tiles on AArch64 machines: ``python -m benchmarks.arm``.

Nothing was run there. Kernels are compiled for the processor, and llvm-mca says how many cycles their rows and tiles
take (``benchmarks.rows_code``, ``benchmarks.tiles_code``); data sheets say the rest. LLVM has no model of Apple's cores
since the A7 (Cyclone) and takes that for all of them, so an Apple processor gets two figures: of Cyclone, which has
three vector units and starts six micro-operations a cycle, and of Neoverse V2, which has four vector units as Apple's
cores have.

    python -m benchmarks.arm               the stored estimates as Markdown tables
    python -m benchmarks.arm --write       compile for every processor, ask llvm-mca, store: minutes

Left out: attention, norms, barriers, rows that wait for memory, and whether one core can read that fast.
``benchmarks.cpu`` prints these estimates beside what it measures on one of these machines.
"""

from __future__ import annotations

import argparse
import json
import subprocess
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from ds4ref.runs import provenance

from . import tiles_code
from .goals import FORMATS
from .rows_code import FOREIGN, MCA, other_process

TABLE = Path(__file__).with_name("arm.json")
MODELS = {
    "apple-m1": ("apple-m1", "neoverse-v2"),
    "apple-m4": ("apple-m4", "neoverse-v2"),
    "cortex-x925": ("neoverse-v2", "cortex-x925"),
    "neoverse-v2": ("neoverse-v2",),
}
"""Processors that kernels are compiled for, and llvm-mca's models that say what they cost there."""
MODEL_NAMES = {"apple-m1": "Cyclone", "apple-m4": "Cyclone", "neoverse-v2": "Neoverse V2"}
MODEL_NAMES |= {"cortex-x925": "Neoverse V3"}
"""What LLVM 22 takes for a model of each."""
KERNELS = tuple(f"{fmt}/{act}" for fmt, act in FORMATS.items())


class Machine(NamedTuple):
    """A machine as its data sheet describes it.

    brand       how its processor's name begins, as the system reports it (``ds4ref.environment.cpu_name``)
    cpu         LLVM's name of its fast cores
    cores       fast cores, at most; slow ones are not counted
    ghz         their clock, at best
    bandwidth   GB/s of its memory, as advertised
    """

    name: str
    brand: str
    cpu: str
    cores: int
    ghz: float
    bandwidth: float


MACHINES = (
    Machine("M1 Max", "Apple M1 Max", "apple-m1", 8, 3.2, 400),
    Machine("M4 Max", "Apple M4 Max", "apple-m4", 12, 4.5, 546),
    Machine("M3 Ultra", "Apple M3 Ultra", "apple-m4", 24, 4.05, 819),  # the kernels of both are the same code
    Machine("GB10", "Cortex-A725 + Cortex-X925", "cortex-x925", 10, 3.9, 273),
)


class Span(NamedTuple):
    """An estimate: the lowest and the highest figure of its models."""

    low: float
    high: float

    def times(self, factor: float, most: float = float("inf")) -> Span:
        """Return both figures times ``factor``, and no more than ``most``."""
        return Span(min(most, factor * self.low), min(most, factor * self.high))


@cache
def stored() -> dict[str, Any]:
    """Return the stored document: LLVM's version, commit, and by processor its tier and figures by model."""
    return json.loads(TABLE.read_text())


def rate(document: Mapping[str, Any], cpu: str, kernel: str) -> Span:
    """Return the bytes of weights a cycle of a kernel on a processor, rows included from end to end."""
    models = document["processors"][cpu]["models"].values()
    rates = [figures[kernel]["row_bytes"] / figures[kernel]["row_cycles"] for figures in models]
    return Span(min(rates), max(rates))


def core(document: Mapping[str, Any], machine: Machine, kernel: str) -> Span:
    """Return the GB/s of weights that one fast core of a machine takes."""
    return rate(document, machine.cpu, kernel).times(machine.ghz)


def token_bytes() -> dict[str, float]:
    """Return the bytes of weights by format that decoding one token of Flash q2 reads, in formats that have kernels
    here; what is left out (vectors in F32) is 2 of 9,559 MB."""
    from ds4ref.archs.deepseek4.shape import FLASH
    from ds4ref.archs.deepseek4.tensors import expected_tensors, slots

    places = {slot.name: slot for slot in slots(FLASH)}
    totals = dict.fromkeys(FORMATS, 0.0)
    for spec in expected_tensors(FLASH, "q2"):
        if spec.fmt in totals:
            totals[spec.fmt] += places[spec.name].bytes_per_token(spec.nbytes, FLASH)
    return {fmt: nbytes for fmt, nbytes in totals.items() if nbytes}


def token_seconds(document: Mapping[str, Any], machine: Machine, cores: int) -> Span:
    """Return the seconds that the rows of a token take on ``cores`` cores: matrices follow each other, and each is
    bound by the cores or by the memory."""
    rates = {fmt: core(document, machine, f"{fmt}/{act}") for fmt, act in FORMATS.items()}
    ends = []
    for end in ("low", "high"):
        ends.append(
            sum(
                nbytes / 1e9 / min(machine.bandwidth, cores * getattr(rates[fmt], end))
                for fmt, nbytes in token_bytes().items()
            )
        )
    return Span(ends[1], ends[0])


def this_machine() -> Machine | None:
    """Return the machine that this process runs on, if it is one of MACHINES."""
    from ds4ref.environment import cpu_name

    name = cpu_name()
    return next((machine for machine in MACHINES if name.startswith(machine.brand)), None)


def both(span: Span, digits: int = 0, unit: str = "") -> str:
    """Format a span: one figure where both are the same."""
    low, high = (f"{value:.{digits}f}{unit}" for value in span)
    return low if low == high else f"{low} - {high}"


def percent(span: Span) -> str:
    """Format a span of shares."""
    return both(span.times(100), 0, " %")


def tables(document: Mapping[str, Any]) -> str:
    """Return the estimates as Markdown."""
    lines = ["Bytes of weights a cycle, whole rows of 4096 weights, one input:", ""]
    heads = [(cpu, model) for cpu, models in MODELS.items() for model in models]
    titles = [f"{cpu}, tier {document['processors'][cpu]['tier']}: {MODEL_NAMES[model]}" for cpu, model in heads]
    lines += _rule(["kernel", *titles])
    for kernel in KERNELS:
        cells = []
        for cpu, model in heads:
            figures = document["processors"][cpu]["models"][model][kernel]
            spilled = f", {figures['spills']} spills" if figures["spills"] else ""
            cells.append(f"{figures['row_bytes'] / figures['row_cycles']:.1f}{spilled}")
        lines.append(_line([kernel, *cells]))
    lines += ["", "GB/s of one core, and share of the memory's bandwidth that one core / all fast cores can take:", ""]
    lines += _rule(["kernel", *(f"{m.name}: {m.cores} x {m.ghz} GHz, {m.bandwidth} GB/s" for m in MACHINES)])
    for kernel in KERNELS:
        cells = []
        for m in MACHINES:
            one = core(document, m, kernel)
            whole = one.times(m.cores / m.bandwidth, most=1)
            cells.append(f"{both(one)}; {percent(one.times(1 / m.bandwidth, most=1))} / {percent(whole)}")
        lines.append(_line([kernel, *cells]))
    total = sum(token_bytes().values()) / 1e9
    cells = []
    for m in MACHINES:
        seconds = [token_seconds(document, m, cores) for cores in (1, m.cores)]
        shares = [percent(Span(total / m.bandwidth / s.high, total / m.bandwidth / s.low)) for s in seconds]
        one, every = (both(Span(1 / s.high, 1 / s.low), 1) for s in seconds)
        cells.append(f"{shares[0]} / {shares[1]}; {one} / {every} tokens/s")
    lines.append(_line([f"rows of a token, {total:.2f} GB", *cells]))
    return "\n".join(lines)


def tile_tables(document: Mapping[str, Any]) -> str:
    """Return the estimates of tiles as Markdown."""
    heads = [(cpu, model) for cpu, models in MODELS.items() for model in models]
    what = " / ".join(["tile alone", *(f"{tokens} tokens" for tokens in tiles_code.TOKENS), "by rows"])
    lines = [f"Multiplications and additions a cycle: {what}:", ""]
    titles = [f"{cpu}, tier {document['processors'][cpu]['tier']}: {MODEL_NAMES[model]}" for cpu, model in heads]
    lines += _rule(["kernel", *titles])
    for kernel in tiles_code.KERNELS:
        cells = []
        for cpu, model in heads:
            row = tiles_code.Expected(**document["tiles"][cpu][model][kernel])
            rates = [row.rate, *(row.with_decoding(tokens) for tokens in tiles_code.TOKENS), row.row_rate]
            cells.append(" / ".join(f"{value:.0f}" for value in rates))
        lines.append(_line([kernel, *cells]))
    return "\n".join(lines)


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _rule(cells: Sequence[str]) -> list[str]:
    return [_line(cells), "|" + "---|" * len(cells)]


def asked(cpu: str, model: str, mca: str, *words: str) -> dict[str, Any]:
    """Return what ``rows_code --json`` or its like says of kernels compiled for ``cpu``, by ``model``."""
    arguments = [*words, "--json", "--mca", mca, "--model", model]
    done = other_process(cpu, None, arguments, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"arm: {cpu}: {(done.stderr.strip().splitlines() or ['failed'])[-1]}")
    return json.loads(done.stdout)


def computed(mca: str) -> dict[str, Any]:
    """Compile for every processor, ask every model, and return the document to store."""
    processors: dict[str, Any] = {}
    tiles: dict[str, Any] = {}
    for cpu, models in MODELS.items():
        answers = {model: asked(cpu, model, mca, "benchmarks.rows_code", *KERNELS) for model in models}
        tiles[cpu] = {m: asked(cpu, m, mca, "benchmarks.tiles_code", "--cpu", cpu)["kernels"] for m in models}
        figures = {model: answer["kernels"] for model, answer in answers.items()}
        processors[cpu] = {"triple": FOREIGN[cpu], "tier": answers[models[0]]["tier"], "models": figures}
    commit = provenance.commit()
    if commit is None or commit.endswith("+"):
        raise SystemExit("arm: commit first: the estimates name it")
    version = subprocess.run([mca, "--version"], capture_output=True, text=True).stdout
    (llvm,) = (line.split()[-1] for line in version.splitlines() if "LLVM version" in line)
    return {"llvm": llvm, "commit": commit, "processors": processors, "tiles": tiles}


def main(argv: Sequence[str] | None = None) -> int:
    """Print or renew the estimates; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="benchmarks.arm", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--write", action="store_true", help=f"compute the estimates again, into {TABLE.name}")
    parser.add_argument("--mca", default=MCA, help=f"name of llvm-mca (default {MCA})")
    args = parser.parse_args(argv)
    if args.write:
        from ds4ref.files import atomic_write

        text = json.dumps(computed(args.mca), indent=1)
        with atomic_write(TABLE) as file:
            file.write((text + "\n").encode())
        stored.cache_clear()
    print(tables(stored()), tile_tables(stored()), sep="\n\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
