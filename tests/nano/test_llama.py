"""llama.cpp's own implementation of the architecture loads the embedded model and computes the same.

It rounds activations to int8 and caches to f16, so logits agree to a few per cent of their spread, not to the bit; and
a near tie of the router, resolved the other way, moves a single position by more.
"""

import numpy as np
import pytest

from ds4ref.engine import Engine
from ds4ref.nano.skills import held_out

pytestmark = pytest.mark.peers


SKILLS = ("recall/near", "lists/sort", "facts", "sums3", "think/sums3", "choice", "think/choice", "tools/fixed",
          "tools/open", "topic")  # fmt: skip
QUESTIONS, LENGTH = 5, 80


@pytest.fixture(scope="module")
def trained(trained_path):
    cpp = pytest.importorskip("llama_cpp", reason="the extra 'peers' is not installed")
    model = cpp.Llama(trained_path, n_ctx=1024, n_batch=512, logits_all=True, verbose=False, n_threads=2, seed=1)
    with Engine.open(trained_path, backend="cpu", numerics="exact") as engine:
        yield model, engine
    model.close()


@pytest.mark.parametrize("skill", SKILLS)
def test_same_greedy_answers_of_the_trained_model(trained, skill):
    """llama.cpp sees our answer: at every token its own best one is ours, whatever its roundings are (caches and inputs
    of F16 matrices in f16)."""
    model, engine = trained
    for item in held_out(skill, QUESTIONS, seed=1):
        prompt = item.prompt().encode(engine.tokenizer)
        session = engine.session(len(prompt) + LENGTH)
        session.sync(prompt)
        ours = [int(session.logits.argmax())]
        while len(ours) < LENGTH and ours[-1] != engine.tokenizer.eos:
            session.eval(ours[-1])
            ours.append(int(session.logits.argmax()))
        model.reset()
        model.eval([*prompt, *ours[:-1]])
        theirs = np.array(model.scores[len(prompt) - 1 : len(prompt) + len(ours) - 1])
        short = theirs.max(axis=1) - theirs[np.arange(len(ours)), ours]
        assert short.max() == 0, (skill, int(short.argmax()), float(short.max()))
