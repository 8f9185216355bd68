"""Counters of routed experts, and that asking for their pages changes nothing but timing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ds4ref.archs.deepseek4.hooks import Recorder
from ds4ref.engine import Engine
from ds4ref.errors import DataError
from ds4ref.kernels.cpu import CPU
from ds4ref.nano import random_path

from . import dense


def choices(engine: Engine, tokens: int) -> int:
    return tokens * engine.shape.n_layers * engine.shape.n_used


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_every_choice_is_counted_in_prefill_and_decode(backend: str) -> None:
    with Engine.open(random_path(), backend=backend, numerics="ds4") as engine:
        session = engine.session(64)
        session.sync([5, 6, 7, 8, 9])
        counts = engine.model.experts.counts
        assert counts.sum() == choices(engine, 5)
        for token in (10, 11):
            session.eval(token)
        assert counts.sum() == choices(engine, 7)
        assert (counts.sum(axis=1) == 7 * engine.shape.n_used).all()
        table = engine.model.weights.layers[0].ffn_gate_tid2eid
        assert table is not None
        assert (counts[0] == np.bincount(table[5:12].ravel(), minlength=engine.shape.n_experts)).all()


def test_routing_weights_come_before_the_down_projection() -> None:
    """To the bit, as Q8_K rounds a row of any size to the same codes: weighed outputs differ by float noise alone."""
    with Engine.open(random_path(), backend="reference", numerics="ds4") as engine:
        session, seen, layer = engine.session(64), Recorder(), 3
        session.hooks = seen
        session.extend([5, 6, 7])
        ops, w = engine.model.ops, engine.model.weights.layers[layer]
        gate, up, ids, weights = (seen[f"ffn_moe_{name}", layer] for name in ("gate", "up", "topk", "weights_scaled"))
        limit, one = engine.shape.swiglu_limit[layer], np.ones_like(weights)
        before, plain = (ops.swiglu(gate, up, limit, factor) for factor in (weights, one))
        np.testing.assert_array_equal(ops.expert_sum(before, ids, w.ffn_down_exps, "q8k"), seen["ffn_moe_out", layer])
        parts = [ops.expert_sum(plain[:, [k]], ids[:, [k]], w.ffn_down_exps, "q8k") for k in range(ids.shape[1])]
        after = sum(weights[:, [k]] * part for k, part in enumerate(parts))
        np.testing.assert_allclose(after, seen["ffn_moe_out", layer], rtol=1e-3, atol=1e-6)
        assert not np.array_equal(after, seen["ffn_moe_out", layer])


def test_summary_names_the_hottest() -> None:
    with Engine.open(random_path(), backend="reference") as engine:
        use = engine.model.experts
        use.counts[2, 3], use.counts[1, 7] = 9, 4
        found = engine.expert_use(most=5)
    assert found["hottest"] == [[2, 3, 9], [1, 7, 4]]
    assert (found["choices"], found["experts_used"], found["advised"]) == (13, 2, False)


def test_a_model_without_experts_has_nothing_to_count(tmp_path: Path) -> None:
    shape = dense.draw_shape(1, dense.FAMILIES["llama"])
    path = dense.write(tmp_path / "m.gguf", shape, dense.draw_tensors(shape, 1, True))
    with Engine.open(path, advise=True) as engine:
        assert engine.expert_use() == {"choices": 0, "experts_used": 0, "experts": 0, "hottest": [], "advised": False}
        with pytest.raises(DataError, match="no routed experts"):
            engine.expert_counts()


def test_advice_changes_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    real = CPU.advise
    monkeypatch.setattr(CPU, "advise", lambda ops, ids, w: (asked.append(w.fmt), real(ops, ids, w)))
    outputs = []
    for advise in (False, True):
        with Engine.open(random_path(), numerics="ds4", advise=advise) as engine:
            session, layers = engine.session(64), engine.shape.n_layers
            session.sync([5, 6, 7])
            outputs.append([session.eval(token).copy() for token in (8, 9, 10)])
            names = session._decoder.last.tasks
            assert names.count("advise_experts") == 3 * layers * advise
    assert np.array_equal(outputs[0], outputs[1])
    assert len(asked) == 3 * layers  # in prefill; recorded tokens name it as a task
