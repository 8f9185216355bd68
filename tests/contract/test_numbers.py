"""Logits against Hugging Face and ds4 in the three numerics modes, prefilled and token by token."""

from __future__ import annotations

import numpy as np
import pytest

from tests.golden import AGAINST, BARS, case, decoded, engine, missed, needs_golden


@needs_golden
@pytest.mark.parametrize("way", ["prefill", "decode"])
@pytest.mark.parametrize(("numerics", "name"), [("exact", "t40"), ("exact", "t200"), ("qat", "t200"), ("ds4", "t200")])
def test_golden_logits(numerics: str, name: str, way: str) -> None:
    model, key = AGAINST[numerics]
    opened, wanted = engine(model, numerics, "cpu"), case(model, name)
    ids = wanted["ids"]
    got = opened.logits(ids) if way == "prefill" else decoded(opened, ids)
    assert not missed(numerics, wanted[key], np.asarray(got)[wanted["rows"]], BARS[name])
