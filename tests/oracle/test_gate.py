"""The gate at its small size, and that it closes: mistakes put into a written file, gaps that are none.

Without llama.cpp its figures are left out, and gguf-py, Hugging Face and we are compared.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from . import gate
from .conftest import missing
from .gate_models import Row, rows

pytestmark = pytest.mark.oracle
HERE = find_spec("llama_cpp") is not None
QWEN = Row("qwen2", "yarn", False)


@pytest.fixture(autouse=True)
def transformers() -> None:
    """Needed for a whole row."""
    if find_spec("transformers") is None or find_spec("torch") is None:
        missing("transformers is not installed (pip install 'ds4ref[oracle]')")


def test_a_few_rows() -> None:
    found = [(row, gate.cells(row, gate.SMALL_FORMATS)) for row in gate.small_rows()]
    text, good = gate.table(found, gate.SMALL_FORMATS)
    print(text)
    assert good, text
    figures = [cell.text for _, cells in found for cell in cells.values() if not cell.note]
    assert len(figures) == len(found) + HERE * len(gate.SMALL_FORMATS) * (len(found) - 1)
    assert all(0 < float(figure) < gate.CHAOTIC for figure in figures)
    assert ("it knows `rope_freqs.weight` in its architecture `llama` only" in text) is HERE


def test_every_row_is_once() -> None:
    assert len(set(map(str, rows()))) == len(rows()) == 8 * 4 * 2
    assert sum(row.plain for row in rows()) == 8


def tensor_of(out: Path, name: str) -> np.ndarray:
    """The bytes of a tensor in the file, (rows, bytes), to be changed in place."""
    reader = gguf.GGUFReader(out, "r+")
    data = next(tensor.data for tensor in reader.tensors if tensor.name == name)
    return data.reshape(-1, data.shape[-1])


def rows_exchanged(out: Path) -> None:
    """Two rows of a matrix in each other's place."""
    data = tensor_of(out, "blk.1.ffn_up.weight")
    data[[3, 4]] = data[[4, 3]]


def another_base(out: Path) -> None:
    """Another base of rope: llama.cpp reads it as we do, Hugging Face read the folder's."""
    field = gguf.GGUFReader(out, "r+").fields["qwen2.rope.freq_base"]
    field.parts[field.data[0]][0] = 2e4


def one_norm(out: Path) -> None:
    """A value that stays F32, less by a hundredth."""
    tensor_of(out, "blk.0.attn_norm.weight").reshape(-1)[5] *= 0.99


@pytest.mark.parametrize(
    ("mistake", "fmt", "column", "says"),
    [
        (rows_exchanged, "Q4_K", "Q4_K", "a row of blk.1.ffn_up.weight is 1."),
        (rows_exchanged, "F32", "F32", "a row of blk.1.ffn_up.weight is 1."),
        (one_norm, "Q4_K", "Q4_K", "a row of blk.0.attn_norm.weight is"),
        (another_base, "F32", gate.OTHERS, "% from Hugging Face"),
    ],
)  # fmt: skip
def test_a_mistake_in_the_file(
    mistake: Callable[[Path], None], fmt: str, column: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = gate.written

    def spoilt(folder: Path, out: Path, fmt: str) -> None:
        write(folder, out, fmt)
        mistake(out)

    monkeypatch.setattr(gate, "written", spoilt)
    found = gate.cells(QWEN, [fmt])
    assert found[column].failed and says in found[column].note, found
    assert not gate.table([(QWEN, found)], [fmt])[1]


@pytest.mark.skipif(not HERE, reason="llama-cpp-python is not installed")
@pytest.mark.parametrize(
    ("row", "factor", "says"),
    [(QWEN, 1.3, "% from llama.cpp"), (Row("deepseek4", "yarn", False), 1.02, "hc_attn_post of layer 1 is")],
    ids=["qwen2", "deepseek4"],
)
def test_a_mistake_of_ours(row: Row, factor: float, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of the second layer's norm off, which for DeepSeek V4 is little beside other choices of experts."""
    emulated = gate.emulated

    def wrong(engine: Any, ids: list[int]) -> np.ndarray:
        layer = engine.model.weights.layers[1]
        norm = layer.attn_norm.copy()
        norm[::2] *= np.float32(factor)
        object.__setattr__(layer, "attn_norm", norm)  # it is frozen
        return emulated(engine, ids)

    monkeypatch.setattr(gate, "emulated", wrong)
    found = gate.cells(row, ["Q4_K"])["Q4_K"]
    assert found.failed and says in found.note, found


def test_a_declared_gap_that_is_none_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    excuse = gate.Excuse("quantize", "head", lambda row: True, "never written")
    monkeypatch.setattr(gate, "EXCUSES", (excuse,))
    found = gate.cells(QWEN, ["F16"])
    assert found[gate.OTHERS] == gate.failure("expected: never written")


def test_a_gap_that_is_not_declared_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "EXCUSES", ())
    found = gate.cells(Row("deepseek4", "linear", False), ["F32"])
    assert all(cell.failed and "rope_type" in cell.note for cell in found.values()) and len(found) == 2
