"""Every dense family as a folder: what its config says, logits by the plain pass, what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ds4ref.engine import Engine

from . import families
from .test_dense import BAR, apart

each_kind = pytest.mark.parametrize("kind", families.KINDS)


@each_kind
@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_a_folder_is_its_config_and_the_plain_pass(kind: str, backend: str, tmp_path: Path) -> None:
    model = families.draw(kind, 1)
    with Engine.open(model.folder(tmp_path / "m"), backend=backend, numerics="exact") as engine:
        assert replace(engine.shape, name=model.shape.name) == model.shape
        got = engine.session(60).extend(model.ids)
    if model.shape.scaling.kind == "none":
        assert apart(got, model.logits()) < BAR
