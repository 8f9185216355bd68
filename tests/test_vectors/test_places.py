"""Places of mistakes without a name: op and layer are found, right engines have none, a replay is the pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ds4ref.engine import Engine
from ds4ref.nano import embedded_path
from ds4ref.test_vectors.diagnosis import Diagnosis, Signatures
from ds4ref.test_vectors.diagnosis import places as module
from ds4ref.test_vectors.diagnosis.case import Case
from ds4ref.test_vectors.diagnosis.places import Effects, places
from ds4ref.test_vectors.observation import from_logits
from ds4ref.test_vectors.trace.plan import planned
from ds4ref.variants.edits import changes
from ds4ref.variants.faults import Fault
from ds4ref.variants.forced import model_of
from ds4ref.variants.replay import Change, Replay
from ds4ref.variants.scoped import ScopedFault

from .test_sixteen_bits import own_ids

LENGTH = 28


@pytest.fixture(scope="module", autouse=True)
def fewer() -> Iterator[None]:
    """A third of the changes, in every layer, so that this takes seconds; all of them: ``tests.oracle.test_places``."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "changes", lambda model: [c for c in changes(model) if "zero" in c.says])
        yield


@pytest.fixture(scope="module")
def library(_model_cache: Any) -> Iterator[Signatures]:
    with Engine.open(embedded_path(), backend="cpu", numerics="exact", threads=1) as engine:
        yield Signatures(engine, own_ids(engine, LENGTH))


@pytest.fixture(scope="module")
def kept() -> dict[int, Effects]:
    return {}


def only(op: str, layer: int, edit: Callable[[np.ndarray], np.ndarray], half: str) -> ScopedFault:
    """A mistake in one half layer that no change of ``edits`` makes."""
    fault = Fault("wrong", "", edits={op: lambda value, at, chunk, taps: edit(value).astype(np.float32)})
    return ScopedFault(fault, f"layer {layer}", lambda at, where: (at, where) == (layer, half))


def fifth(v: np.ndarray) -> np.ndarray:
    lost = np.arange(v.shape[-1]) * 5 // v.shape[-1] == 3
    return np.where(lost, 0, v)


MISTAKES = {
    "attn_out": (1, fifth, "attn"),
    "ffn_shexp": (2, lambda v: 1.1 * v, "ffn"),
    "hc_ffn_pre_post_weights": (0, lambda v: v * np.array([1, 1, 0.6, 1]), "ffn"),
    "kqv_back": (2, lambda v: v * np.array([1, 0, 0, 1])[None, :, None], "attn"),
    "ffn_norm": (1, lambda v: np.where(np.arange(v.shape[1]) > 120, v, 0.7 * v), "ffn"),
}


@pytest.mark.parametrize("op", MISTAKES)
def test_the_place_of_a_mistake_that_no_change_makes(op: str, library: Signatures, kept: dict[int, Effects]) -> None:
    """Its layer is first; its op, or one that feeds or follows it alone, among three."""
    layer, edit, half = MISTAKES[op]
    seen = from_logits(library.ids, library.run("exact", [only(op, layer, edit, half)], seed=5))
    answer = places(Case(library, seen, None), "exact", 600, kept=kept)
    assert answer[0].layer == layer
    same = {"ffn_shexp": "ffn_shexp_mid", "kqv_back": "attn_low"}.get(op, op)
    assert {place.op for place in answer[:3]} & {op, same}, [place.text() for place in answer[:3]]
    chances = [place.probability for place in answer]
    assert chances == sorted(chances, reverse=True) and sum(chances) <= 1


def test_a_change_as_it_is_explains_everything_at_its_positions(library: Signatures) -> None:
    lost = only("kqv_back", 1, lambda v: v * (np.arange(v.shape[1]) != 2)[None, :, None], "attn")
    logits = library.runner.run(library.ids.tolist(), "exact", [lost], np.random.default_rng(5), since=20)[0]
    first = places(Case(library, from_logits(library.ids, logits), None), "exact", 600)[0]
    assert (first.op, first.layer, first.positions) == ("kqv_back", 1, (20, LENGTH - 1))
    assert first.change == "head 2 is zero" and first.explained > 0.7 and first.probability > 0.5


@pytest.mark.parametrize("louder", [1.0, 8.0])
def test_a_right_engine_has_no_place(louder: float, library: Signatures, kept: dict[int, Effects]) -> None:
    rng = np.random.default_rng(6)
    logits = library.runner.run(library.ids.tolist(), "exact", (), rng, louder=louder)[0]
    answer = places(Case(library, from_logits(library.ids, logits), None), "exact", 600, kept=kept)
    assert sum(place.probability for place in answer) < 0.1


def test_a_replay_from_a_half_layer_is_the_whole_pass(library: Signatures) -> None:
    """Every half layer as the start; the library's fault and the change are the same mistake."""
    replay = Replay(library.engine, library.ids.tolist(), "exact")
    assert np.array_equal(replay.logits, library.run("exact", ()))
    for layer in range(library.engine.shape.n_layers):
        for op, half in (("attn_out", "attn"), ("ffn_out", "ffn")):
            change = Change(op, layer, "", {op: lambda value, at, chunk, taps: value * np.float32(1.5)})
            whole = library.run("exact", [only(op, layer, lambda v: v * np.float32(1.5), half)])
            assert np.array_equal(replay.run(change), whole)
            short = replay.run(change, 9)
            np.testing.assert_allclose(short, whole[:9], atol=1e-4)
            late = replay.run(replace(change, mask=np.arange(LENGTH) >= 12))
            np.testing.assert_allclose(replay.run(change, 20, 12), late[12:20], atol=1e-4)
    assert np.array_equal(replay.run(Change("ffn_out", 0, "")), replay.logits)
    half = Change("result_norm", -1, "", {"result_norm": lambda v, *_: 0 * v}, mask=np.arange(LENGTH) >= 12)
    assert np.array_equal(replay.run(half)[:12], replay.logits[:12]) and not replay.run(half)[12:].any()


def test_no_two_changes_are_the_same_and_most_have_an_effect(library: Signatures) -> None:
    """One in ten is run; a change that fails says nothing of its place."""
    every = list(changes(model_of(library.engine)))
    assert len(every) > 2000 and len({(c.op, c.layer, c.says) for c in every}) == len(every)
    replay = Replay(library.engine, library.ids.tolist(), "exact")
    idle = [c for c in every[::10] if np.array_equal(replay.run(c), replay.logits)]
    # the prompt is too short for rows of ratio 128, for a window, and for an indexer that leaves rows out
    assert len(idle) < 0.3 * len(every[::10])


def test_places_choose_the_layers_to_dump(library: Signatures) -> None:
    def asked(*likely: tuple[int | None, float]) -> Any:
        result = Diagnosis("undecided", None, 0.9, 3, "exact", "")
        result.places = [{"op": "attn_out", "layer": layer, "probability": p} for layer, p in likely]
        return planned(library.engine.shape, LENGTH, result)

    assert asked() is None
    assert asked((1, 0.8), (2, 0.01)).layers == (1,)
    assert asked((2, 0.5), (1, 0.3)).layers == (1, 2)
    assert asked((None, 0.9)).layers == (1,)  # all layers: one of the kind whose rows begin at the first wrong position
