"""The gate: what ``ds4-quantize`` writes, read by gguf-py, llama.cpp, Hugging Face and us, as one table.

    python -m tests.oracle.gate
    python -m tests.oracle.gate --small --only qwen

A row is an architecture with a kind of rope, and a head of its own or the embedding's (``gate_models``); a column is a
format that the command writes. Known gaps are declared here with their reasons (``EXCUSES``): a cell that is empty
for another reason, or is not empty after all, fails like one beyond its bar, and the command exits 1.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import multiprocessing
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from ds4ref.cli.quantize import main as quantize
from ds4ref.engine import Engine
from ds4ref.errors import Ds4Error
from ds4ref.kernels.cpu.quantize import QUANTIZERS
from ds4ref.weights import open_source

from ..text.test_library import trained_definition
from .gate_models import LONG_TEXT, TEXT, Row, rows
from .test_quantized import emulated, same_in_gguf_py

FORMATS = tuple(QUANTIZERS)
SMALL_FORMATS = ("F32", "Q8_0", "Q4_K")
OTHERS = "Hugging Face"
"""The column that compares our logits of the F32 file with Hugging Face's of the folder."""
MATRICES = ("--experts", "--attention-proj", "--shared", "--ffn", "--embedding", "--output-matrix")
"""Options of all families but routers, hyper-connections, compressors and indexers, whose choices are discrete."""
BARS = {"F32": 1e-3, "F16": 0.3, "BF16": 1.0, OTHERS: 2e-3}
BAR = 4.0
"""Largest rms of differences, in percent of the standard deviation of logits. Quantized: a code that falls on the other
side of a rounding is 1 % to 2 % in so small a model."""
TABLED = 0.05
"""The same for Gemma in F32: an input of llama.cpp's table of GELU, in binary16, may be the next one."""
CHAOTIC = 15.0
"""The same for DeepSeek V4 quantized: another code may select another row or expert."""
HALVES = {"hc_attn_post": 2e-4, "hc_ffn_post": 2e-3}
HALVES_BF16 = {"hc_attn_post": 2e-4, "hc_ffn_post": 1e-2}
"""Largest error of DeepSeek V4's half layers, in standard deviations (``gate_halves``)."""
ROWS = {
    "F32": 0.0, "F16": 1e-3, "BF16": 5e-3, "Q8_0": 0.02, "Q6_K": 0.05, "Q5_K": 0.08, "Q5_0": 0.08, "Q4_K": 0.16,
    "Q4_0": 0.16, "IQ4_NL": 0.16, "IQ4_XS": 0.16, "MXFP4": 0.2, "Q3_K": 0.3, "Q2_K": 0.5, "IQ2_XXS": 0.75,
}  # fmt: skip
"""Largest error of any row of a matrix over the row's norm; two rows exchanged are 1.4."""
ROUTED = ("mixtral", "qwen3moe", "deepseek4")
"""Architectures with experts: where a router is undecided, a rounding that differs sends a token to another expert."""
UNDIVIDED = ("qwen2", "qwen3", "qwen3moe", "gemma3")


@dataclass(frozen=True)
class Excuse:
    """Cells that are known to be empty: ``stage`` ("quantize", "ours", "llama.cpp") stops; ``says``: in its line."""

    stage: str
    says: str
    holds: Callable[[Row], bool]
    note: str


EXCUSES = (
    Excuse("quantize", "rope_type", lambda row: row.arch == "deepseek4" and row.rope in ("linear", "llama3"),
           "ds4-quantize refuses the folder: DeepSeek V4's rope is YaRN or not scaled"),
    Excuse("quantize", "output.weight", lambda row: row.arch == "deepseek4" and row.tied,
           "our engine and ds4-quantize refuse the folder: a DeepSeek V4 has a head of its own"),
    Excuse("llama.cpp", "does not load", lambda row: row.arch in UNDIVIDED and row.rope == "llama3",
           "llama.cpp does not load the file: it knows `rope_freqs.weight` in its architecture `llama` only, and no "
           "other way to say Llama 3's rope (ds4-quantize says so); Hugging Face, gguf-py and ours agree"),
)  # fmt: skip
NOT_INSTALLED = "{} is not installed here"


@dataclass(frozen=True)
class Cell:
    """A cell's text, with the reason if it is no figure."""

    text: str
    note: str = ""
    failed: bool = False


class Stopped(Exception):
    """A stage refused: (stage, its line)."""


def failure(text: str) -> Cell:
    """Return a cell that fails the gate."""
    return Cell("**FAILED**", text, failed=True)


# --- one file


def written(folder: Path, out: Path, fmt: str) -> None:
    """Run ``ds4-quantize`` with every matrix in a format; raise Stopped if it refuses."""
    formats = [part for option in MATRICES for part in (option, fmt)]
    says = io.StringIO()
    with contextlib.redirect_stdout(says), contextlib.redirect_stderr(says):
        code = quantize([str(folder), "-o", str(out), "--recipe", "f32", *formats, "--threads", "1"])
    if code:
        raise Stopped("quantize", says.getvalue().strip().splitlines()[-1])


def check_rows(folder: Path, out: Path) -> None:
    """Raise AssertionError naming a tensor with a row farther from the folder's than its format explains."""
    with open_source(folder) as source, open_source(out) as made:
        assert source.tensors.keys() == made.tensors.keys(), "the file has other tensors than the folder"
        for name, info in source.tensors.items():
            wanted, got = (
                i.fmt.dequantize(s.raw(name)).reshape(i.shape).astype(np.float64)
                for s, i in ((source, info), (made, made.tensors[name]))
            )
            norms, errors = np.linalg.norm(wanted, axis=-1), np.linalg.norm(got - wanted, axis=-1)
            worst = float(np.max(errors / np.maximum(norms, 1e-30)))
            bar = ROWS.get(made.tensors[name].fmt.name, 0.0)
            assert worst <= bar, f"a row of {name} is {worst:.2g} of its norm from the folder's"


def apart(ours: np.ndarray, theirs: np.ndarray, row: Row) -> float:
    """Return the rms of differences in percent of the spread; with experts, that of the median position."""
    rms = np.sqrt(np.mean((ours.astype(np.float64) - theirs) ** 2, axis=1))
    typical = np.median(rms) if row.arch in ROUTED else np.sqrt(np.mean(rms**2))
    return float(100 * typical / theirs.std())


def by_llama_cpp(engine: Engine, out: Path, ids: Sequence[int], row: Row, fmt: str) -> np.ndarray:
    """Return llama.cpp's logits; raise Stopped if it does not load the file."""
    from .gate_halves import logits_and_halves
    from .llama import Llama

    try:
        if row.arch == "deepseek4":
            return logits_and_halves(engine, out, ids, HALVES_BF16 if fmt == "BF16" else HALVES)
        with Llama(out, f32_cache=True, flash=False) as other:
            return other.logits(ids)
    except ValueError as error:
        raise Stopped("llama.cpp", str(error)) from None


def by_hugging_face(folder: Path, ids: Sequence[int], row: Row) -> np.ndarray:
    """Return transformers' logits of the folder."""
    if row.arch == "deepseek4":
        import pytest

        from .test_published import load

        with pytest.MonkeyPatch.context() as patch:
            logits: np.ndarray = load(folder, patch).logits(ids)
        return logits
    from .golden_families import theirs

    return theirs(folder, list(ids))


# --- one row


def cells(row: Row, formats: Sequence[str]) -> dict[str, Cell]:
    """Return the cells of a row by format, and that of ``OTHERS``."""
    found: dict[str, Cell] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "m"
        ids = row.folder(folder, trained_definition())
        for fmt in formats:
            out = Path(name) / f"{fmt}.gguf"
            found[fmt] = guarded(row, fmt, lambda fmt=fmt, out=out: one(row, fmt, folder, out, ids))
        out = Path(name) / "F32.gguf"
        found[OTHERS] = guarded(row, OTHERS, lambda: beside_hugging_face(row, folder, out, ids))
    return found


def guarded(row: Row, column: str, make: Callable[[], float | None]) -> Cell:
    """Turn a figure, or what stopped it, into a cell."""
    excuse = next((e for e in EXCUSES if e.holds(row) and not (column == OTHERS and e.stage == "llama.cpp")), None)
    try:
        figure = make()
    except (Stopped, Ds4Error) as stopped:
        stage, line = stopped.args if isinstance(stopped, Stopped) else ("ours", str(stopped))
        if excuse and excuse.stage == stage and excuse.says in line:
            return Cell("not loaded" if stage == "llama.cpp" else "refused", excuse.note)
        return failure(f"{stage}: {line}")
    except AssertionError as error:
        return failure(next(iter(str(error).strip().splitlines()), "gguf-py reads other tensors or types"))
    if figure is None:
        return Cell("not compared", NOT_INSTALLED.format("transformers" if column == OTHERS else "llama.cpp"))
    if excuse:
        return failure(f"expected: {excuse.note}")
    bar = BARS.get(column, CHAOTIC if row.arch == "deepseek4" else BAR)
    bar = TABLED if (row.arch, column) == ("gemma3", "F32") else bar
    text = f"{figure:.2g}" if figure >= 0.01 else f"{figure:.0e}"
    return Cell(text) if figure < bar else failure(f"{text} % from {column if column == OTHERS else 'llama.cpp'}")


def one(row: Row, fmt: str, folder: Path, out: Path, ids: Sequence[int]) -> float | None:
    """Write a file, read it by everybody; return how far llama.cpp is, None if it is not installed."""
    written(folder, out, fmt)
    same_in_gguf_py(out)
    check_rows(folder, out)
    with Engine.open(out, numerics="exact", threads=1) as engine:
        ours = emulated(engine, list(ids))
        if find_spec("llama_cpp") is None:
            return None
        return apart(ours, by_llama_cpp(engine, out, ids, row, fmt), row)


def beside_hugging_face(row: Row, folder: Path, out: Path, ids: Sequence[int]) -> float | None:
    """Return how far Hugging Face's logits of the folder are from ours of the F32 file, None without transformers."""
    if not out.exists():
        written(folder, out, "F32")
    if find_spec("transformers") is None or find_spec("torch") is None:
        return None
    with Engine.open(out, numerics="exact", threads=1) as engine:
        ours = engine.logits(list(ids))
    return apart(ours, by_hugging_face(folder, ids, row), row)


# --- the table


def small_rows() -> list[Row]:
    """Return a few rows that have everything once."""
    wanted = (("llama", "llama3", False), ("qwen2", "yarn", True), ("qwen3moe", "linear", False),
              ("gemma3", "none", True), ("qwen3", "llama3", False), ("deepseek4", "yarn", False))  # fmt: skip
    return [Row(*each) for each in wanted]


def apart_in_processes(chosen: Iterable[Row], formats: Sequence[str]) -> Iterator[tuple[Row, dict[str, Cell]]]:
    """Yield every row's cells, computed in another process, because llama.cpp may abort."""
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(1, context)
    for row in chosen:
        start = time.monotonic()
        try:
            found = pool.submit(cells, row, formats).result()
        except BrokenProcessPool:
            found = dict.fromkeys((*formats, OTHERS), failure("the process died"))
            pool = ProcessPoolExecutor(1, context)
        bad = [f"{column}: {cell.note}" for column, cell in found.items() if cell.failed]
        print(f"{row}: {time.monotonic() - start:.1f} s {'; '.join(bad)}", file=sys.stderr, flush=True)
        yield row, found
    pool.shutdown()


def table(found: Iterable[tuple[Row, dict[str, Cell]]], formats: Sequence[str]) -> tuple[str, bool]:
    """Return the table with its footnotes as Markdown, and whether no cell failed."""
    columns, notes, good = (OTHERS, *formats), [], True
    lines = [f"| architecture | rope | tied | {' | '.join(columns)} |", "|---" * (3 + len(columns)) + "|"]
    for row, by_column in found:
        texts = []
        for column in columns:
            cell = by_column[column]
            good &= not cell.failed
            if cell.note and cell.note not in notes:
                notes.append(cell.note)
            texts.append(cell.text + (f" ({notes.index(cell.note) + 1})" if cell.note else ""))
        lines.append(f"| {row} | {' | '.join(texts)} |")
    footnotes = [f"{number}. {note}." for number, note in enumerate(notes, 1)]
    return "\n".join([*lines, "", *footnotes]), good


PAGE = """\
# The gate

What `ds4-quantize` writes of every family's folder, as others read it. Made by `{command}`
at commit {commit}, {versions}. It exits 1 if a cell fails; a few rows of it run in
`make oracle` (`tests/oracle/test_gate.py`).

A row is a tiny folder of random weights as Hugging Face has it ({rows} in all). A column is a GGUF with all matrices in
that format, embedding and head too; routers, and DeepSeek V4's compressors, indexers and hyper-connections, are F32,
because their choices are discrete. Each cell is one file, and holds if

- gguf-py reads every tensor and decodes it to our values bit for bit;
- no row of a tensor is farther from the folder's than its format explains, from 0 in F32 to {worst} of its norm in
  IQ2_XXS (two rows exchanged are 1.4);
- llama.cpp loads it, and its logits of {text} tokens ({long} for DeepSeek V4) are near ours. The figure is the rms of
  the differences in percent of the logits' standard deviation. Ours is the compiled pass in mode exact, with inputs of
  products rounded as llama.cpp rounds them. Bars: F32 {f32} (Gemma {tabled}, whose GELU llama.cpp takes from a table),
  F16 {f16}, BF16 {bf16}, others {other}: these differ by float noise until a code falls on the other side of a
  rounding, which in so small a model is a percent. With experts the figure is the median position's, because another
  code may send a token to another expert. DeepSeek V4 also selects rows, and the bar of its quantized files is
  {chaotic}; so each of its half layers (but the first attention) is also compared alone, on llama.cpp's own streams:
  the median position within {attention} standard deviations behind attention, {ffn} behind experts (BF16: {ffn16}).

Column "{others}": our logits of the F32 file in mode exact, from Hugging Face's of the folder, bar {hf}.

{table}

## Non-claims

Random weights, two layers (Gemma 3 and DeepSeek V4: six), one text a row, one batch, CPU. Not seen here: windows other
than Gemma's (llama.cpp does not read them in the other dense architectures, [dense.md](../explanation/dense.md)),
importance, mixtures of formats, long contexts, tokenizers. What reader and writer of ours do wrong alike is seen by
gguf-py and llama.cpp in a file, and by Hugging Face alone in a folder. With experts, what is wrong at
fewer than half of the positions is not seen.
"""


def page(argv: Sequence[str], text: str) -> str:
    """Return the page around the table."""
    found = ", ".join(f"{name} {_version(name)}" for name in ("llama-cpp-python", "gguf", "transformers", "torch"))
    percents = {"f32": BARS["F32"], "f16": BARS["F16"], "bf16": BARS["BF16"], "hf": BARS[OTHERS], "other": BAR}
    percents |= {"tabled": TABLED, "chaotic": CHAOTIC}
    return PAGE.format(
        command=" ".join(["python -m tests.oracle.gate", *argv]), commit=_commit(), versions=found, rows=len(rows()),
        worst=ROWS["IQ2_XXS"], text=TEXT, long=LONG_TEXT, attention=HALVES["hc_attn_post"], ffn=HALVES["hc_ffn_post"],
        ffn16=HALVES_BF16["hc_ffn_post"], others=OTHERS, table=text,
        **{name: f"{value:g} %" for name, value in percents.items()},
    )  # fmt: skip


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _commit() -> str:
    """The commit, and whether the tree has changes."""
    git = ["git", "-C", str(Path(__file__).parent)]
    found = subprocess.run([*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    changed = subprocess.run([*git, "status", "--porcelain", "-uno"], capture_output=True, text=True, check=False)
    return (found.stdout.strip() or "unknown") + (" with changes" if changed.stdout.strip() else "")


def main(argv: Sequence[str]) -> int:
    """Print the page; return 1 if a cell failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.oracle.gate", description="Write the gate's page.")
    parser.add_argument("--small", action="store_true", help="a few rows in three formats")
    parser.add_argument("--only", default="", metavar="TEXT", help="rows with this text, such as 'qwen3 | yarn'")
    args = parser.parse_args(argv)
    formats = SMALL_FORMATS if args.small else FORMATS
    chosen = [row for row in (small_rows() if args.small else rows()) if args.only in str(row)]
    text, good = table(apart_in_processes(chosen, formats), formats)
    print(page(argv, text), end="")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
