"""The block for multi-token prediction: its files, its pass on both backends, its window.

Against the torch module that it was trained as: tests/oracle/test_mtp.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from ds4ref.archs.deepseek4.cache import REACH
from ds4ref.archs.deepseek4.mtp import Block, Window
from ds4ref.engine import Engine
from ds4ref.errors import Ds4Error, ModelFileError, ShapeError
from ds4ref.kernels.formats import FORMATS
from ds4ref.nano import mtp_path
from ds4ref.nano.trained import weights_folder
from ds4ref.weights.gguf import GGUFFile
from ds4ref.weights.writer import TensorSpec, write_gguf
from tests.marking import sampled

MODES = ["exact", "qat", "ds4"]


@pytest.fixture(scope="module")
def engine(trained_path: str) -> Iterator[Engine]:
    with Engine.open(trained_path, numerics="exact", threads=1) as engine:
        yield engine


@pytest.fixture(scope="module")
def block(engine: Engine) -> Block:
    return Block.open(mtp_path(), engine.model)


def pairs(block: Block, count: int, seed: int = 3) -> tuple[np.ndarray, list[int]]:
    """Streams (count, C, D) that differ in size from stream to stream, and tokens."""
    s, rng = block.shape, np.random.default_rng(seed)
    X = rng.standard_normal((count, s.hc, s.dim), np.float32) * np.float32([[[0.3], [1], [3], [10]]])
    return X, [int(t) for t in rng.integers(0, s.vocab, count)]


def run(block: Block, rows: Window, X: np.ndarray, ids: list[int], size: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Streams and logits after every pass of ``size`` pairs, (passes, C, D) and (passes, V)."""
    out = []
    for start in range(0, len(ids), size):
        streams, logits = block.forward(X[start : start + size], ids[start : start + size], rows)
        out.append((block.ops.host(streams)[0].copy(), block.ops.host(logits)[0].copy()))
    return np.stack([a for a, _ in out]), np.stack([b for _, b in out])


def far(got: np.ndarray, wanted: np.ndarray) -> float:
    """The greatest difference in units of the spread of the values."""
    return float(np.abs(got - wanted).max() / wanted.std())


# --- the pass


@pytest.mark.parametrize("mode", sampled(MODES, ["exact", "ds4"]))
def test_both_backends_compute_the_same(trained_path: str, mode: str) -> None:
    """At every position of more than two windows. A difference of rounding to 8 bits or E4M3 is rare, and small."""
    results = []
    for backend in ("reference", "cpu"):
        with Engine.open(trained_path, backend=backend, numerics=mode) as engine:
            block = Block.open(mtp_path("q4"), engine.model)
            X, ids = pairs(block, 2 * block.shape.window + 2)
            results.append(run(block, Window(block), X, ids))
            block.close()
    (plain_streams, plain), (streams, logits) = results
    assert far(streams, plain_streams) < (1e-4 if mode == "exact" else 0.1)
    assert far(logits, plain) < (1e-4 if mode == "exact" else 0.1)
    assert np.median(np.abs(logits - plain)) < 1e-4 * plain.std()


def test_the_window_is_that_of_the_model_and_wraps(block: Block) -> None:
    """Past the end of the ring, twice: logits depend on the newest ``window`` pairs, to the bit, and on all of them."""
    window = block.shape.window
    count = 2 * (2 * window + REACH) + window + 3
    X, ids = pairs(block, count)
    rows = Window(block)
    _, logits = run(block, rows, X, ids)
    for seen in (window, window - 1):
        late = Window(block)
        late.restart(count - seen)
        _, last = run(block, late, X[-seen:], ids[-seen:])
        assert np.array_equal(last[-1], logits[-1]) == (seen == window)


def test_taking_rows_back(block: Block) -> None:
    """As long as the ring has a window before the new position, itself included, nothing is lost; what is overwritten
    is forgotten."""
    window = block.shape.window
    ring = 2 * window + REACH
    free = ring - window + 1
    count = ring + 40
    X, ids = pairs(block, count + 1)
    base = Window(block)
    _, logits = run(block, base, X[:count], ids[:count])

    def rewound(pos: int) -> Window:
        rows = Window(block)
        rows.layers[0].raw[:] = base.layers[0].raw
        rows.restart(0)
        rows.advance(count)
        rows.rewind(pos)
        return rows

    for back in (1, free, free + 1, ring - 1):
        rows = rewound(count - back)
        assert (rows.first, rows.pos) == (count - ring, count - back)
        _, again = run(block, rows, X[count - back : count], ids[count - back : count])
        assert np.array_equal(again[0], logits[count - back]) == (back <= free)
        assert np.array_equal(again[-1], logits[-1])
    for pos in (count - ring, count - ring - 1, 0):
        rows = rewound(pos)
        assert (rows.first, rows.pos) == (pos, pos)


# --- files


def test_a_published_folder_holds_the_same_block(engine: Engine, block: Block) -> None:
    """Weights as they were trained are BF16 there, F16 in the file; both are what was trained."""
    folder = Block.open(weights_folder(), engine.model)
    X, ids = pairs(block, 40)
    assert far(run(folder, Window(folder), X, ids)[1], run(block, Window(block), X, ids)[1]) < 1e-3
    folder.close()


def rewrite(path: Path, change: Callable[[dict[str, tuple[TensorSpec, np.ndarray]]], None]) -> Path:
    """Write the block's file to ``path``, with its tensors changed."""
    with GGUFFile.open(mtp_path("q4")) as file:
        tensors = {
            name: (TensorSpec(name, info.fmt.name, info.dims), file.raw(name).copy())
            for name, info in file.tensors.items()
        }
        change(tensors)
        with write_gguf(path, [], [spec for spec, _ in tensors.values()]) as out:
            for spec, data in tensors.values():
                out.write(spec.name, data)
    return path


def as_ds4_has_it(tensors: dict[str, tuple[TensorSpec, np.ndarray]]) -> None:
    """Plain matrices as F32, as in ds4's file."""
    for name, (spec, data) in tensors.items():
        if spec.fmt == "F16":
            wide = FORMATS["F16"].dequantize(data).astype("<f4").reshape(-1)
            tensors[name] = TensorSpec(name, "F32", spec.dims), wide.view(np.uint8)


def test_ds4s_file_without_metadata(engine: Engine, tmp_path: Path) -> None:
    """Q8_0, Q4_K and F32, and no metadata: ds4 reads none."""
    theirs = Block.open(rewrite(tmp_path / "mtp.gguf", as_ds4_has_it), engine.model)
    with GGUFFile.open(tmp_path / "mtp.gguf") as file:
        assert {info.fmt.name for info in file.tensors.values()} == {"Q8_0", "Q4_K", "F32"}
        assert not list(file.metadata)
    ours = Block.open(mtp_path("q4"), engine.model)
    X, ids = pairs(ours, 10)
    assert far(run(theirs, Window(theirs), X, ids)[1], run(ours, Window(ours), X, ids)[1]) < 1e-5


def without(name: str) -> Callable[[dict[str, tuple[TensorSpec, np.ndarray]]], None]:
    return lambda tensors: tensors.pop(name)  # type: ignore[return-value]


def with_spec(name: str, fmt: str, dims: tuple[int, ...]) -> Callable[[dict[str, tuple[TensorSpec, np.ndarray]]], None]:
    def change(tensors: dict[str, tuple[TensorSpec, np.ndarray]]) -> None:
        spec = TensorSpec(name, fmt, dims)
        rows = int(np.prod(dims[1:], dtype=int))
        tensors[name] = spec, np.zeros(rows * FORMATS[fmt].row_bytes(dims[0]), np.uint8)

    return change


def with_nan(tensors: dict[str, tuple[TensorSpec, np.ndarray]]) -> None:
    tensors["mtp.0.enorm.weight"][1].view("<f4")[7] = np.nan


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        (without("mtp.0.exp_probs_b.bias"), ShapeError, r"mtp\.0\.exp_probs_b\.bias is missing$"),
        (without("mtp.0.hc_head_fn.weight"), ShapeError, r"mtp\.0\.hc_head_fn\.weight is missing$"),
        (with_spec("mtp.0.h_proj.weight", "Q8_0", (256, 128)), ShapeError,
         r"mtp\.0\.h_proj\.weight has dims \[256, 128\], wanted \[256, 256\]$"),
        (with_spec("mtp.0.enorm.weight", "F32", (512,)), ShapeError,
         r"it is a block of width 512, the model's width is 256$"),
        (with_spec("mtp.0.hnorm.weight", "Q8_0", (256,)), ShapeError, r"hnorm\.weight is Q8_0, wanted F32 or F16 or"),
        (with_spec("mtp.0.ffn_up_exps.weight", "Q2_K", (256, 256, 3)), ShapeError,
         r"ffn_gate_exps\.weight is Q4_K, but mtp\.0\.ffn_up_exps\.weight is Q2_K$"),
        (with_spec("mtp.0.attn_compressor_kv.weight", "F16", (256, 160)), ShapeError,
         r"mtp\.0\.attn_compressor_kv\.weight.* has no place in a deepseek4 model here$"),
        (with_spec("mtp.1.enorm.weight", "F32", (256,)), ShapeError, r"mtp\.1\.enorm\.weight.* has no place"),
        (with_nan, ModelFileError, r"mtp\.0\.enorm\.weight.* holds a NaN or infinite value at byte [0-9]+$"),
    ],
)  # fmt: skip
def test_a_wrong_file_is_one_clear_line(
    engine: Engine, tmp_path: Path, change: Callable[..., None], kind: type[Ds4Error], message: str
) -> None:
    path = rewrite(tmp_path / "wrong.gguf", change)
    with pytest.raises(kind, match=message) as caught:
        Block.open(path, engine.model)
    assert str(caught.value).startswith(f"{path}: ") and "\n" not in str(caught.value)


def test_a_block_of_a_model_with_other_experts(nano_engine: Engine) -> None:
    with pytest.raises(ShapeError, match=r"width|has dims"):
        Block.open(mtp_path(), nano_engine.model)
