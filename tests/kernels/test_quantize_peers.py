"""Our quantizers against ggml's own (llama-cpp-python's library): never a larger weighted error on the same weights,
drawn ones and those of a small Llama that was trained (tests/oracle/trained.py), with the importance of its inputs."""

from __future__ import annotations

import numpy as np
import pytest

from ds4ref.kernels.cpu.quantize import SEARCHED, quantize
from ds4ref.kernels.formats import FORMATS

pytestmark = pytest.mark.peers
KINDS = ("normal", "laplace", "outliers", "uniform")


@pytest.fixture(scope="module")
def theirs():
    pytest.importorskip("llama_cpp")
    from benchmarks import quantizers

    return quantizers, quantizers.ggml()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("fmt", ["Q8_0", "Q5_0", "Q4_0"])
def test_formats_without_a_search_are_equal_bit_for_bit(theirs, fmt, kind):
    module, library = theirs
    x, importance = module.drawn(kind, 64, 2048, seed=1)
    x[0, :32], x[1, 7] = 0, 3e4
    np.testing.assert_array_equal(quantize(fmt, x), module.ggml_rows(library, fmt, x))
    if fmt == "Q8_0":
        np.testing.assert_array_equal(quantize(fmt, x, importance), module.ggml_rows(library, fmt, x, importance))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("fmt", [fmt for fmt in SEARCHED if fmt != "IQ2_XXS"])  # ggml has none without importance
def test_without_importance_no_error_is_larger(theirs, fmt, kind, seed):
    module, library = theirs
    x, _ = module.drawn(kind, 48, 1024, seed)
    found = module.compare(library, fmt, x, None)
    assert found["plain"] <= 1 and found["searched"] <= 1, found


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("fmt", ["Q4_0", "Q5_0", *SEARCHED])
def test_with_importance_no_error_is_larger(theirs, fmt, kind, seed):
    module, library = theirs
    x, importance = module.drawn(kind, 48, 1024, seed)
    found = module.compare(library, fmt, x, importance)
    assert found["importance"] <= 1 and found["searched"] <= 1, found


@pytest.mark.parametrize("fmt", ["Q4_0", "Q5_0", *SEARCHED])
def test_even_importance(theirs, fmt):
    module, library = theirs
    x, _ = module.drawn("normal", 48, 1024, 3)
    found = module.compare(library, fmt, x, np.ones(1024, np.float32))
    assert found["importance"] <= 1 and found["searched"] <= 1, found


# --- trained weights


@pytest.fixture(scope="module")
def learned(tmp_path_factory):
    """Matrices of a trained model, float32, and the mean squares of their inputs on its text."""
    from ds4ref.engine import Engine
    from ds4ref.importance import collect, prompts
    from tests.oracle import trained

    folder = trained.trained(tmp_path_factory.mktemp("learned") / "llama")
    with Engine.open(folder, numerics="exact") as engine:
        table = collect(engine, prompts(engine, trained.TEXT, 256, None, 2000))
        found = {}
        for name, entry in table.entries.items():
            info = engine.source.tensors[name]
            values = FORMATS[info.fmt.name].dequantize(engine.source.raw(name)).reshape(info.shape)
            found[name] = np.ascontiguousarray(values, np.float32), entry.usable()[0]
    assert len(found) == 7 * trained.LAYERS
    return found


@pytest.mark.parametrize("given", [False, True], ids=["plain", "importance"])
@pytest.mark.parametrize("fmt", ["Q4_0", "Q5_0", *SEARCHED])
def test_trained_weights(theirs, learned, fmt, given):
    module, library = theirs
    if not given and fmt in ("Q4_0", "Q5_0", "IQ2_XXS"):
        pytest.skip("the same bytes, or nothing to compare with, without importance")
    worst = {}
    for name, (x, importance) in learned.items():
        found = module.compare(library, fmt, x, importance if given else None)
        for measure in ("importance" if given else "plain", "searched"):
            worst[measure] = max(worst.get(measure, (0, "")), (found[measure], name))
    print(fmt, worst)
    assert all(error <= 1 for error, _ in worst.values()), worst


@pytest.mark.parametrize("fmt", ["Q8_0", "Q5_0", "Q4_0"])
def test_trained_weights_bit_for_bit(theirs, learned, fmt):
    module, library = theirs
    for x, _ in learned.values():
        np.testing.assert_array_equal(quantize(fmt, x), module.ggml_rows(library, fmt, x))
