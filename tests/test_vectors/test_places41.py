"""Changes of DeepSeek V4.1's pass at one place: a replay is the pass, and places of bugs without a name are found."""

from __future__ import annotations

import numpy as np
import pytest

from ds4ref.engine import Engine
from ds4ref.nano.diagnostic import PROMPTS
from ds4ref.nano.diagnostic41 import diagnostic41_path
from ds4ref.test_vectors.diagnosis import Signatures
from ds4ref.test_vectors.diagnosis import places as module
from ds4ref.test_vectors.diagnosis.case import Case
from ds4ref.test_vectors.diagnosis.places import places
from ds4ref.test_vectors.observation import from_logits
from ds4ref.variants import V41, Runner
from ds4ref.variants.edits import changes
from ds4ref.variants.families import LATER
from ds4ref.variants.faults import Fault
from ds4ref.variants.replay import Change, Replay
from ds4ref.variants.scoped import first_half
from tests.marking import sampled

IDS = PROMPTS["mixed"]()


@pytest.fixture(scope="module")
def engine():
    with Engine.open(diagnostic41_path(), backend="cpu", numerics="exact", threads=1) as opened:
        yield opened


def test_a_replay_from_any_layer_is_the_pass(engine):
    """Also in layers that read rows, a selection or candidates of earlier ones, and after a change of those."""
    replay = Replay(engine, IDS, "exact")
    assert np.array_equal(replay.logits, Runner(engine).run(IDS, "exact")[0])
    zero = {"KVcompress": lambda value, layer, c, taps: 0 * value}
    for layer in range(engine.shape.n_layers):
        for op in ("attn_norm", "ffn_norm"):
            assert np.abs(replay.run(Change("KVcompress", 2, "zero", zero)) - replay.logits).max() > 0.1
            assert np.array_equal(replay.run(Change(op, layer, "")), replay.logits), (layer, op)
            assert np.array_equal(replay.run(Change(op, layer, ""), None, 112), replay.logits[112:])


@pytest.mark.parametrize("name", sampled([name for name in V41 if not V41[name].needs], ["routed_late", "gelu"]))
def test_a_bug_that_begins_late_gives_what_a_whole_pass_gives(engine, name):
    """Runs with bugs begin at the first half layer that they change, or at what this one reads."""
    fault = V41[name]
    if first_half(fault, engine.shape) == 0:
        pytest.skip("it changes the first layer")
    noiseless = Runner(engine)
    short = noiseless.run(IDS, "exact", [fault])[0]
    noiseless.small = False
    assert np.array_equal(short, noiseless.run(IDS, "exact", [fault])[0])


def fifth(v):
    return np.where(np.arange(v.shape[-1]) * 5 // v.shape[-1] == 3, 0, v).astype(np.float32)


MISTAKES = {"engram_rows": 4, "hc_ffn_read": 6, "attn_out": 7, "KVcompress": 5}


@pytest.mark.parametrize("op", sampled(list(MISTAKES), ["engram_rows", "hc_ffn_read"]))
def test_a_bug_without_a_name_has_its_place(engine, monkeypatch, op):
    monkeypatch.setattr(module, "changes", lambda model: [c for c in changes(model) if "zero" in c.says])
    layer = MISTAKES[op]
    fault = Fault("wrong", "", edits={op: lambda value, at, c, taps: fifth(value) if at == layer else value})
    ids = IDS[:40]
    logits = Runner(engine).run(ids, "exact", [fault], np.random.default_rng(3))[0]
    case = Case(Signatures(engine, ids), from_logits(ids, logits), 0)
    best = places(case, "exact", 60)[0]
    assert best.layer in (layer, None) and best.op.split("_")[0] == op.split("_")[0]


@pytest.mark.parametrize("name", sampled(list(LATER), ["router_temperature", "engram_scale", "candidate_blocks"]))
def test_every_constant_changes_the_logits(engine, name):
    """Unless it is YaRN's, whose ramp moves by whole pairs, or an epsilon."""
    runner, family = Runner(engine), LATER[name]
    right = runner.run(IDS, "exact")[0]
    moved = [np.abs(runner.run(IDS, "exact", [family.fault(v)])[0] - right).max() for v in family.grid(engine.shape)]
    assert max(moved) > 0.1
