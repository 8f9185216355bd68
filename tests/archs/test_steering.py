"""A steered engine against the formula, put on an unsteered one by hooks; files of directions; who may share what."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ds4ref.archs.deepseek4.shape import FLASH
from ds4ref.archs.steering import read_directions, write_directions
from ds4ref.engine import Engine
from ds4ref.engine_options import Steering
from ds4ref.errors import DataError, SessionError, UsageError
from ds4ref.numerics import MODES
from ds4ref.runs.provenance import identity
from ds4ref.session.identity import Identity
from ds4ref.variants.forced import model_in, resumed
from tests.archs import dense

IDS = np.random.default_rng(5).integers(0, 500, 140).tolist()


class ByHand:
    """Hooks that steer as the formula says, in float64, at the points where the halves' results are."""

    def __init__(self, rows: np.ndarray, attn: float, ffn: float):
        self.rows, self.scales = rows.astype(np.float64), {"attn_out": attn, "ffn_out": ffn}

    def begin(self, chunk: Any) -> None: ...

    def tap(self, name: str, layer: int, value: Any, chunk: Any) -> Any:
        scale = self.scales.get(name, 0.0)
        if not scale:
            return value
        d = self.rows[layer]
        return np.stack([y - scale * d * float(d @ y) for y in value.astype(np.float64)]).astype(np.float32)


def drawn(engine: Engine, seed: int = 3) -> np.ndarray:
    """Unit rows, the first twice as long and, of several, the last of zeros."""
    rows = np.random.default_rng(seed).standard_normal((engine.shape.n_layers, engine.shape.dim))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    rows[0] *= 2
    rows[1:][-1:] = 0
    return rows.astype(np.float32)


@pytest.fixture(scope="module")
def engine(nano_path: str) -> Engine:
    return Engine.open(nano_path, numerics="exact", backend="cpu")


def close(got: np.ndarray, wanted: np.ndarray, plain: np.ndarray) -> None:
    """Equal but for float noise, a thousandth of what steering does at most."""
    moved = np.abs(wanted - plain).max()
    assert np.abs(got - wanted).max() < 1e-3 * moved


@pytest.mark.parametrize(("attn", "ffn"), [(0.0, 1.0), (-1.5, 0.0), (0.7, 2.0)])
def test_the_pass_is_the_formula(engine: Engine, attn: float, ffn: float) -> None:
    """In prefill, and recorded token by token."""
    rows = drawn(engine)
    by_hand = engine.session(200)
    by_hand.hooks = ByHand(rows, attn, ffn)
    wanted, plain = by_hand.extend(IDS), engine.session(200).extend(IDS)
    steered = engine.steered(Steering(rows, attn, ffn))
    close(steered.session(200).extend(IDS), wanted, plain)
    session = steered.session(200)
    session.sync(IDS[:-10])
    decoded = np.stack([session.eval(token).copy() for token in IDS[-10:]])
    assert session._decoder.last is not None, "recorded"
    close(decoded, wanted[-10:], plain[-10:])


def test_the_model_in_another_mode_is_steered_too(engine: Engine, nano_path: str) -> None:
    steering = Steering(drawn(engine), 0.7, 2.0)
    with Engine.open(nano_path, numerics="ds4", backend="cpu") as other:
        wanted, plain = (resumed(e.model, IDS[:40], None)[0] for e in (other.steered(steering), other))
    found, _ = resumed(model_in(engine.steered(steering), MODES["ds4"]), IDS[:40], None)
    np.testing.assert_array_equal(found, wanted)
    assert not np.array_equal(found, plain)


def test_no_scale_and_no_direction_are_no_op(engine: Engine) -> None:
    plain = engine.session(60)
    wanted = plain.extend(IDS[:40]), plain.eval(3)
    for steering in (Steering(drawn(engine), 0.0, 0.0), Steering(np.zeros_like(drawn(engine)), 1.0, 1.0), None):
        other = engine.steered(steering)
        session = other.session(60)
        np.testing.assert_array_equal(session.extend(IDS[:40]), wanted[0])
        np.testing.assert_array_equal(session.eval(3), wanted[1])
    assert engine.steered(Steering(drawn(engine), 0.0, 0.0)).steering is None
    assert engine.steering is None, "the engine itself stays as it was"


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_other_families(family: str, tmp_path: Path) -> None:
    shape = dense.draw_shape(1, dense.FAMILIES[family])
    path = dense.write(tmp_path / "model.gguf", shape, dense.draw_tensors(shape, 1, False))
    with Engine.open(path, backend="reference", numerics="exact") as engine:
        ids, rows = [token % engine.shape.vocab for token in IDS[:12]], drawn(engine)
        by_hand = engine.session(20)
        by_hand.hooks = ByHand(rows, 0.5, -1.0)
        wanted, plain = by_hand.extend(ids), engine.session(20).extend(ids)
        close(engine.steered(Steering(rows, 0.5, -1.0)).logits(ids), wanted, plain)


# --- files


def shaped(layers: int, dim: int) -> Any:
    return SimpleNamespace(n_layers=layers, dim=dim)


def test_a_file_of_flash_is_704512_bytes(tmp_path: Path) -> None:
    rows = np.arange(43 * 4096, dtype=np.float32).reshape(43, 4096)
    path = tmp_path / "d.f32"
    write_directions(path, rows)
    assert path.stat().st_size == 704_512
    assert path.read_bytes()[4 * 4096 : 4 * 4096 + 4] == np.float32(4096).tobytes(), "layer by layer"
    np.testing.assert_array_equal(read_directions(path, FLASH), rows)


def test_directions_that_cannot_be(engine: Engine, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot read directions: No such file"):
        read_directions(tmp_path / "none", shaped(2, 3))
    path = tmp_path / "d.f32"
    path.write_bytes(np.array([0, 0, 0, 0, np.nan, 0], "<f4").tobytes())
    with pytest.raises(DataError, match="d.f32: the direction of layer 1 is not finite"):
        read_directions(path, shaped(2, 3))
    with pytest.raises(DataError, match="this model has 6 layers of width"):
        engine.steered(Steering(np.zeros((5, engine.shape.dim), np.float32)))
    for scale in (100.001, -101.0, np.nan):
        with pytest.raises(UsageError, match="from -100 to 100"):
            engine.steered(Steering(drawn(engine), attn=scale))
    engine.steered(Steering(drawn(engine), 100.0, -100.0))


# --- who may go on with what


def test_sessions_of_an_engine_steered_otherwise_are_others(engine: Engine) -> None:
    rows = drawn(engine)
    one, same, other = (engine.steered(Steering(rows, 0.0, ffn)) for ffn in (1.0, 1.0, 2.0))
    facts = Identity.of(one).facts
    assert Identity.of(same).differs(facts) == ""
    assert Identity.of(other).differs(facts) == "steering"
    assert Identity.of(engine).differs(facts) == "steering" and "steering" not in Identity.of(engine).facts
    rows[0, 0] += 1e-3
    assert Identity.of(engine.steered(Steering(rows, 0.0, 1.0))).differs(facts) == "steering"
    near = engine.steered(Steering(drawn(engine), 0.0, 1.0000001))
    assert Identity.of(near).differs(facts) == "steering"
    assert identity(one)["steering"].startswith("attn=0.0 ffn=1.0 sha256:") and "steering" not in identity(engine)
    session = engine.session(20)
    session.sync(IDS[:5])
    with pytest.raises(SessionError, match="only in the engine it was taken from"):
        one.session(20).restore(session.snapshot())
