"""What a pass decides from positions, and that its inputs say where the tokens stand."""

from __future__ import annotations

import numpy as np
import pytest

from ds4ref.archs.deepseek4.chunk import LASTING, Chunk, plan
from ds4ref.archs.deepseek4.rope import RopeTables
from ds4ref.engine import Engine


@pytest.fixture(scope="module")
def engine(nano_path: str) -> Engine:
    return Engine.open(nano_path, numerics="ds4")


def test_windows_that_close(engine: Engine) -> None:
    shape = engine.shape
    for pos0, count, closing in (
        (0, 1, (0, 0)), (3, 1, (1, 0)), (2, 1, (0, 0)), (4, 1, (0, 0)), (0, 4, (1, 0)), (1, 3, (1, 0)), (0, 8, (2, 0)),
        (127, 1, (1, 1)), (128, 1, (0, 0)), (100, 300, (75, 3)), (126, 2, (1, 1)), (125, 2, (0, 0)),
    ):  # fmt: skip
        assert tuple(plan(shape, pos0, count).closing.values()) == closing, (pos0, count)


def test_rows_to_score(engine: Engine) -> None:
    """None while all fit into the top k; then as many as there are, for a recording up to a power of two that lasts for
    a while, but no more than there is room for."""
    shape, k = engine.shape, engine.shape.index_topk
    many = 100 * LASTING
    assert plan(shape, 0, 4 * k).scored == 0
    assert plan(shape, 4 * k, 3).scored == 0
    assert plan(shape, 4 * k, 4).scored == k + 1
    assert plan(shape, 4 * k, 4, most=5 * k).scored == 5 * k
    assert plan(shape, 4 * k, 4, most=many).scored == LASTING
    assert plan(shape, 4 * LASTING - 4, 4, most=many).scored == LASTING
    assert plan(shape, 4 * LASTING, 4, most=many).scored == 2 * LASTING
    assert plan(shape, 8 * LASTING - 4, 4, most=many).scored == 2 * LASTING
    assert plan(shape, 12 * LASTING, 4, most=3 * LASTING + 7).scored == 3 * LASTING + 7
    assert plan(shape, 10, 1).key == plan(shape, 20, 1).key
    keys = {plan(shape, pos, 1, many).key for pos in (2, 3, 127, 4 * k + 4, 4 * k + 7, 4 * LASTING + 4)}
    assert len(keys) == 6


def test_inputs_say_where_the_tokens_stand(engine: Engine) -> None:
    """At first and after ``move``, which keeps the arrays."""
    model, shape = engine.model, engine.shape
    window = shape.window

    def check(c: Chunk, ids: list[int], pos0: int) -> list[np.ndarray]:
        arrays = [c.ids, c.at(), c.at(4), *c.raw_window(), c.visible(4), c.rows(4), c.no_rows()]
        at = np.arange(pos0, pos0 + len(ids))
        first = np.maximum(at - window + 1, 0)
        wanted = [
            ids,
            [pos0],
            [pos0 // 4],
            first,
            at - first + 1,
            (at + 1) // 4,
            [(pos0 + len(ids)) // 4],
            [0] * len(ids),
        ]
        for array, values in zip(arrays, wanted, strict=True):
            np.testing.assert_array_equal(array, values)
        for layer, ratio in enumerate(shape.ratios):
            c.at_layer(layer, model.weights.layers[layer], None)
            for got, want in zip(c.rope_tables(), RopeTables(shape, ratio != 0, "ds4")(at), strict=True):
                np.testing.assert_array_equal(got, want)
            if ratio:
                rows = (pos0 // ratio + np.arange(c.plan.closing[ratio])) * ratio
                for got, want in zip(c.row_tables(), RopeTables(shape, True, "ds4")(rows), strict=True):
                    np.testing.assert_array_equal(got, want)
        return arrays

    for ids, pos0, further in (([5], 3, 7), ([5, 6, 7], 126, 382), ([9] * 200, 0, 1024)):
        c = Chunk(model, ids, pos0, plan(shape, pos0, len(ids)))
        before = check(c, ids, pos0)
        other = [token + 1 for token in ids]
        assert plan(shape, further, len(ids)).closing == c.plan.closing
        c.move(np.array(other), further)
        after = check(c, other, further)
        assert all(one is two for one, two in zip(before, after, strict=True))
