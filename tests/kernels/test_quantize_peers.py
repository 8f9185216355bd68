"""Our quantizers against ggml's own (llama-cpp-python's library): never a larger weighted error on the same weights."""

from __future__ import annotations

import numpy as np
import pytest

from kernels.cpu.quantize import SEARCHED, quantize

pytestmark = pytest.mark.peers
KINDS = ("normal", "laplace", "outliers", "uniform")


@pytest.fixture(scope="module")
def theirs():
    pytest.importorskip("llama_cpp")
    from benchmarks import quantizers

    return quantizers, quantizers.ggml()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("fmt", ["Q8_0", "Q4_0"])
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
@pytest.mark.parametrize("fmt", ["Q4_0", *SEARCHED])
def test_with_importance_no_error_is_larger(theirs, fmt, kind, seed):
    module, library = theirs
    x, importance = module.drawn(kind, 48, 1024, seed)
    found = module.compare(library, fmt, x, importance)
    assert found["importance"] <= 1 and found["searched"] <= 1, found


@pytest.mark.parametrize("fmt", ["Q4_0", *SEARCHED])
def test_even_importance(theirs, fmt):
    module, library = theirs
    x, _ = module.drawn("normal", 48, 1024, 3)
    found = module.compare(library, fmt, x, np.ones(1024, np.float32))
    assert found["importance"] <= 1 and found["searched"] <= 1, found
