"""Mistakes of DSpark drafters: each one changes what the golden drafter guesses, and acceptance along a text is that of
a session."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest

from ds4ref.archs.deepseek4.dspark import Drafter
from ds4ref.archs.deepseek4.forward import Model
from ds4ref.archs.deepseek4.rope import RopeTables
from ds4ref.engine import Engine
from ds4ref.engine_options import Drafting
from ds4ref.nano import dspark_path
from ds4ref.variants.drafters import MISTAKES, accepted, observe, of_width
from tests.archs.test_dspark import GOLDEN, model, write

__all__ = ["model"]


@pytest.fixture(scope="module")
def golden(model: Model, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Drafter]:
    with closing(Drafter.open(write(tmp_path_factory.mktemp("d") / "d.gguf"), model)) as drafter:
        yield drafter


@pytest.mark.parametrize("name", [*MISTAKES, "width"])
def test_every_mistake_changes_the_logits(golden: Drafter, name: str) -> None:
    """Of some row of the block, and of no other drafter with the same weights."""
    mistake = of_width(3) if name == "width" else MISTAKES[name]
    taps = GOLDEN["case2.taps"]
    before = taps[:, ::-1].copy()
    golden.rope[True] = RopeTables(replace(golden.shape, yarn_factor=16.0), True, "f32")
    wrong, logits = mistake.of(golden), []
    for one, means in ((golden, taps), (wrong, mistake.means(taps, before)), (golden, taps)):
        rows = one.rows()
        one.inject(means, rows)
        logits.append(one.guess(int(GOLDEN["case2.anchor"]), rows).logits)
    np.testing.assert_array_equal(logits[0], logits[2])
    few = min(len(logits[0]), len(logits[1]))
    assert np.abs(logits[0][:few] - logits[1][:few]).max() > 1e-3


@pytest.mark.parametrize("depth", [2, 5])
def test_acceptance_along_a_text_is_that_of_a_session(trained_path: str, depth: int) -> None:
    drafts = Drafting("dspark", dspark_path(), depth=depth)
    with Engine.open(trained_path, numerics="exact", drafts=drafts) as engine:
        ids = list(engine.prompt("Tell me a story about a fox."))
        start, session = len(ids), engine.session(600)
        session.sync(ids)
        counts: list[int] = []
        session._settled = counts.append
        while len(ids) < start + 200:
            ids.append(session.argmax())
            session.append(ids[-1])
        drafter = engine.drafts.drafter
        simulated = accepted(drafter, observe(engine, drafter, ids), start=start, width=depth)
    few = min(len(counts), len(simulated)) - 1
    assert few > 40 and counts[:few] == simulated[:few]
