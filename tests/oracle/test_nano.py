"""The trained embedded model in Hugging Face: the same greedy continuations of the skills' prompts."""

from __future__ import annotations

import numpy as np
import pytest

from ds4ref.engine import Engine
from ds4ref.nano import embedded_path
from ds4ref.nano.skills import held_out

from .hf import Oracle

pytestmark = pytest.mark.oracle

SKILLS = (
    "recall/window", "recall/near", "lists/reverse", "lists/sort", "facts", "sums3", "think/sums3", "choice",
    "tools/open", "story",
)  # fmt: skip
PROMPTS, LENGTH = 5, 40
NEAR = 1e-3
"""Nats below which a difference of the best two tokens is float noise: 30 times the bar of mode exact."""


def greedy(session, tokenizer, ids: list[int]) -> list[int]:
    """Return the continuation of ``ids``, at most ``LENGTH`` tokens, up to the end token."""
    session.sync(ids)
    out: list[int] = []
    while len(out) < LENGTH and (not out or out[-1] != tokenizer.eos):
        if out:
            session.eval(out[-1])
        out.append(int(session.logits.argmax()))
    return out


@pytest.fixture(scope="module")
def pair():
    path = embedded_path("f16")
    with Engine.open(path, numerics="exact") as engine:
        yield engine, Oracle.load(path)


@pytest.mark.parametrize("skill", SKILLS)
def test_greedy_continuations_are_the_same(pair, skill):
    """Hugging Face sees our continuation: at every token its own best one is ours, or within float noise of it."""
    engine, oracle = pair
    for item in held_out(skill, PROMPTS, seed=1):
        prompt = item.prompt().encode(engine.tokenizer)
        ours = greedy(engine.session(4096), engine.tokenizer, prompt)
        logits = oracle.logits([*prompt, *ours[:-1]])[len(prompt) - 1 :]
        short = logits.max(axis=1) - logits[np.arange(len(ours)), ours]
        assert short.max() < NEAR, (skill, int(short.argmax()), float(short.max()))
