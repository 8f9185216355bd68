"""Golden models end to end on compiled CUDA kernels: prefill, and token by token as recordings are replayed.

The bars are those of every backend (``tests/golden.py``). ``make cuda`` runs the fewest tokens in which everything
happens, 126 to 129: the window of 16 slides, windows of 4 and of 128 are compressed at the end of 127, the indexer
chooses 8 of 31 rows and of 32. The reference backend saw the tokens before and saved its session.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from ds4ref.kernels.cuda.ops.products import MANY_TOKENS
from tests.golden import AGAINST, BARS, case, engine, missed, needs_golden

from .lowering.hosted import LAUNCHED

pytestmark = [pytest.mark.cuda, needs_golden]
BEGIN, END = 126, 130

each_way = pytest.mark.parametrize("way", ["prefill", "decode"])


@pytest.fixture(scope="module", autouse=True)
def _driver(cuda_driver: Any) -> Iterator[None]:
    engine.cache_clear()
    LAUNCHED.clear()
    yield
    engine.cache_clear()


def _later(model: str, numerics: str, ids: np.ndarray, way: str, begin: int = BEGIN) -> np.ndarray:
    """Logits after tokens ``begin`` to ``END`` - 1, behind those that the reference backend saw."""
    before = engine(model, numerics, "reference").session(END + 1)
    before.sync(ids[:begin].tolist())
    saved = io.BytesIO()
    before.save(saved)
    session = engine(model, numerics, "cuda").session(END + 1)
    session.load(io.BytesIO(saved.getvalue()))
    if way == "decode":
        return np.stack([session.eval(int(token)) for token in ids[begin:END]])
    return session.extend(ids[begin:END])


@each_way
@pytest.mark.parametrize("numerics", list(AGAINST))
def test_where_windows_close_and_rows_are_chosen(numerics: str, way: str) -> None:
    """Four tokens are too few for the mean of mode ds4, which is held to the reference backend's logits instead."""
    model, key = AGAINST[numerics]
    known = case(model, "t200")
    ids, wanted = known["ids"], known[key][BEGIN:END]
    assert known["rows"][BEGIN:END].tolist() == list(range(BEGIN, END))
    if numerics == "ds4":
        wanted = engine(model, numerics, "reference").logits(ids[:END])[BEGIN:]
    assert not missed(numerics, wanted, _later(model, numerics, ids, way), BARS["t200"]) and LAUNCHED


@pytest.mark.parametrize("numerics", ["exact", "qat"])
def test_as_many_tokens_as_tensor_cores_take(numerics: str) -> None:
    """The last MANY_TOKENS of those behind which windows close: products with float inputs go by tiles."""
    model, key = AGAINST[numerics]
    known = case(model, "t200")
    got = _later(model, numerics, known["ids"], "prefill", END - MANY_TOKENS)
    assert any(kernel.py_func.__module__.endswith("matmat") for kernel in LAUNCHED)
    assert not missed(numerics, known[key][END - MANY_TOKENS : END], got, BARS["t200"])
