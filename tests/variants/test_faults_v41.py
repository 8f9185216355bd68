"""Known bugs of DeepSeek V4.1 on its diagnostic model: each one shows, and is named."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest

from ds4ref.engine import Engine
from ds4ref.nano.diagnostic41 import DIAGNOSTIC41, DIAGNOSTIC41_SHA256, diagnostic41_path
from ds4ref.test_vectors.diagnosis import Signatures, diagnose
from ds4ref.test_vectors.observation import from_logits
from ds4ref.variants import LIBRARY, V41, Runner
from ds4ref.variants.faults_v41 import REPLAY, SHARED
from tests.marking import sampled

IDS = (np.random.PCG64(1).random_raw(200) % np.uint64(DIAGNOSTIC41.vocab)).astype(int).tolist()
OWN = [name for name in V41 if name not in SHARED]


@pytest.fixture(scope="module")
def engine():
    with Engine.open(diagnostic41_path(), backend="reference", numerics="exact", threads=1) as opened:
        yield opened


@pytest.fixture(scope="module")
def runner(engine):
    return Runner(engine)


@pytest.fixture(scope="module")
def right(runner):
    return {mode: runner.run(IDS, mode)[0] for mode in ("exact", "qat")}


def test_the_model_is_the_same_on_every_machine_and_gets_its_prompts(engine) -> None:
    assert hashlib.sha256(Path(diagnostic41_path()).read_bytes()).hexdigest() == DIAGNOSTIC41_SHA256
    assert engine.shape == DIAGNOSTIC41 and engine.profile.name == "v4.1"
    assert not V41.keys() - set(SHARED) & LIBRARY.keys()


@pytest.mark.parametrize("name", sampled(OWN, ["read_unlagged", "newest_block_lost", "rows_powers_of_two"]))
def test_every_bug_shows(runner, right, name) -> None:
    fault = V41[name]
    mode = "qat" if fault.needs else "exact"
    moved = np.abs(runner.run(IDS, mode, [fault])[0] - right[mode]).max(axis=1)
    few = ("raw_scale_floor", "rows_scaled_by_sixth")  # values that are rare (test_readings41)
    assert moved.max() > (1e-4 if fault.quiet else 0.1) or name in few
    if name == "bounded_replay":
        assert moved[: len(IDS) - REPLAY].max() == 0 and moved[len(IDS) - REPLAY] > 0.01


def test_a_fault_that_begins_late_goes_on_with_its_own_prompt(engine, runner) -> None:
    fault, other = [V41["read_unlagged"]], IDS[::-1]
    runner.run(IDS, "exact", fault, since=195)
    got = runner.run(other, "exact", fault, since=195)[0]
    assert np.array_equal(got, Runner(engine).run(other, "exact", fault, since=195)[0])


@pytest.mark.slow
def test_bugs_are_named_and_right_engines_acquitted(engine, runner) -> None:
    """In drawn order: 70 % named, none as another one, and none above the detection limit acquitted."""
    library, named, wrong, missed = Signatures(engine, IDS), 0, [], []
    faults = [list(V41)[i] for i in np.random.default_rng(11).permutation(len(V41))]
    for number, name in enumerate((None, *faults)):
        mode = "qat" if name and V41[name].needs else ("exact", "qat")[number % 2]
        bugs = [V41[name]] if name else []
        logits = runner.run(IDS, mode, bugs, noise=np.random.default_rng(99))[0]
        result = diagnose(library, from_logits(IDS, logits), bos=0)
        named += result.fault == name
        if result.verdict == "fault" and result.fault != name:
            wrong.append((name, result.fault))
        if result.clean and name and not V41[name].quiet:
            missed.append(name)
    assert not wrong and not missed and named >= 0.7 * len(faults)
