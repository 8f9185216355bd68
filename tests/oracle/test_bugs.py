"""One description, two authors: the library's faults in our engine, and the same mistakes made in Hugging Face's code.

Where both give the same logits, the line that the library says about a fault is what the fault does. The archives of
``tests.oracle.bugs`` rest on that.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ds4ref.engine import Engine
from ds4ref.nano.diagnostic import PROMPTS, diagnostic_path
from ds4ref.variants import LIBRARY, Fault, Runner
from ds4ref.variants.families import FAMILIES as OURS

pytestmark = [pytest.mark.oracle, pytest.mark.slow]

IDS = PROMPTS["text"]()[:144]
"""Past the first window of 128. In this text no top-k choice is closer than 1e-4 to a tie."""

TIE = 2e-5
"""Margin of a top-k decision below which two correct engines may part."""


@pytest.fixture(scope="module")
def oracle(load_oracle: Any) -> Any:
    return load_oracle(diagnostic_path())


@pytest.fixture(scope="module")
def clean(oracle: Any) -> np.ndarray:
    return oracle.logits(IDS)


def rms(x: np.ndarray) -> float:
    return float(np.sqrt(np.square(x, dtype=np.float64).mean()))


def same(oracle: Any, clean: np.ndarray, runner: Runner, bug: Any, fault: Fault) -> str:
    """Empty if both give the same up to the first near-tie, to float noise, and the fault shows in those positions."""
    with bug.apply(oracle):
        theirs = oracle.logits(IDS)
    ours, margin = runner.run(IDS, "exact", [fault])
    ties = np.flatnonzero(margin < TIE)
    until = ties[0] if len(ties) else len(IDS)
    apart, effect = rms((theirs - ours)[:until]), rms((theirs - clean)[:until])
    # a mistake can raise float noise too; the smallest of the library are but a few times that noise
    if apart > max(2e-5 * rms(theirs) / rms(clean), 1e-4 * effect) or apart > 0.7 * effect:
        return f"{bug.name}: apart {apart:.1e}, effect {effect:.1e}, {until} positions"
    return ""


def test_library_faults_are_the_same_in_hugging_face(oracle: Any, clean: np.ndarray) -> None:
    """Half of the library: every part of the pass, what it reads, and chunks."""
    from .bugs import LIBRARY_BUGS

    with Engine.open(diagnostic_path(), threads=1) as engine:
        runner = Runner(engine)
        wrong = [same(oracle, clean, runner, bug, LIBRARY[bug.name]) for bug in LIBRARY_BUGS]
    assert not any(wrong), "\n".join(filter(None, wrong))


def test_families_are_the_same_in_hugging_face(oracle: Any, clean: np.ndarray) -> None:
    """Those that both have by one name and in one unit: the smallest and the largest size."""
    from .bugs import FAMILIES

    both = [family for family in FAMILIES if family.name in OURS and family.unit != "rows more"]
    assert len(both) >= 5
    with Engine.open(diagnostic_path(), threads=1) as engine:
        runner, wrong = Runner(engine), []
        for family in both:
            for bug, size in zip(family.bugs(), family.sizes, strict=True):
                if size in (min(family.sizes), max(family.sizes)):
                    wrong.append(same(oracle, clean, runner, bug, OURS[family.name].fault(size)))
    assert not any(wrong), "\n".join(filter(None, wrong))


def test_a_bug_leaves_the_model_as_it_was(oracle: Any, clean: np.ndarray) -> None:
    """Archives are made one bug after the other on one model."""
    from .bugs import DECODE_BUGS, LIBRARY_BUGS, OUTSIDE_BUGS

    before = oracle.logits(IDS[:4])
    for bug in (*LIBRARY_BUGS, *OUTSIDE_BUGS, *DECODE_BUGS):
        with bug.apply(oracle):
            pass
        assert np.array_equal(oracle.logits(IDS[:4]), before), bug.name
    assert np.array_equal(oracle.logits(IDS), clean)


def test_every_bug_is_wrong(oracle: Any, clean: np.ndarray) -> None:
    """Outside the library: each with an effect, from hardly above float noise to gross."""
    from .bugs import OUTSIDE_BUGS, bug_logits

    effects = {bug.name: rms(bug_logits(oracle, bug, IDS) - clean) for bug in OUTSIDE_BUGS}
    assert len(effects) == len(OUTSIDE_BUGS), "names are unique"
    assert not set(effects) & set(LIBRARY)
    found = np.array(list(effects.values()))
    assert found.min() > 3e-6 and (found < 3e-2).sum() >= 1 and (found > 1).sum() >= 2, effects


def test_the_right_size_of_a_family_is_no_mistake(oracle: Any, clean: np.ndarray) -> None:
    """The right size is no mistake, and the worst one is a gross one."""
    from .bugs import FAMILIES

    right = {"factor": 1.0, "rows more": 0.0}
    short = clean[:100]
    for family in FAMILIES:
        if family.unit in right:
            with family.make(right[family.unit])(oracle):
                assert rms(oracle.logits(IDS) - clean) < 1e-5, family.name
        effect = {}
        for size in {min(family.sizes), max(family.sizes)}:
            with family.make(size)(oracle):
                effect[size] = rms(oracle.logits(IDS[:100]) - short)
        assert max(effect.values()) > 1e-2, (family.name, effect)


def test_an_edit_that_does_not_fit_is_refused(oracle: Any) -> None:
    """Another version of transformers must not be patched halfway."""
    from .surgery import HEAD, edit

    with pytest.raises(ValueError, match="no 'no such text'"), edit(HEAD, "forward", ("no such text", ""))(oracle):
        pass


def test_mistakes_of_decode_leave_the_prefill_right(oracle: Any) -> None:
    """The rows of the first call are bit for bit those of the right engine; later ones are not."""
    from .bugs import DECODE_BUGS, PREFILL, bug_logits

    right = oracle.decode(IDS, PREFILL)
    for bug in DECODE_BUGS:
        apart = np.abs(bug_logits(oracle, bug, IDS) - right)
        assert not apart[:PREFILL].any() and rms(apart[PREFILL:]) > 0.02, bug.name
