"""What ``ds4-quantize`` makes of every dense family's folder, loaded and computed by llama.cpp."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ds4ref.cli.quantize import main as quantize
from ds4ref.engine import Engine

from ..archs import families
from ..text.test_library import definition  # noqa: F401
from .compare import difference

pytestmark = pytest.mark.peers

RECIPES = {"f32": ("exact", 1e-5), "f16": ("exact", 1e-2), "q8": ("ds4", 3e-2)}
"""Recipe -> the numerics nearest to llama.cpp's, and the largest rms of differences in standard deviations of the
logits. llama.cpp rounds inputs of F16 matrices to F16 and those of Q8_0 to 8 bits."""
KINDS = list(families.KINDS)
TABLE = {("gemma3", "f32"): 1e-3}
"""Bars of kinds whose GELU llama.cpp takes from a table of binary16."""
SEEN = ("gemma3",)
"""Kinds whose windows llama.cpp reads."""


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("kind", KINDS)
def test_the_same_logits(kind: str, recipe: str, definition: Any, llama: Any, tmp_path: Path) -> None:  # noqa: F811
    model = drawn(kind, windowed=kind in SEEN)
    out = written(model, recipe, definition, tmp_path)
    numerics, bar = RECIPES[recipe]
    bar = TABLE.get((kind, recipe), bar)
    with Engine.open(out, numerics=numerics) as engine:
        ours = engine.logits(model.ids)
    with llama.Llama(out, f32_cache=numerics == "exact", flash=False) as other:
        theirs = other.logits(model.ids)
    found = difference(ours, theirs)
    print(f"{kind} {recipe}: {found}, spread {theirs.std():.3g}")
    assert found.rms < bar * float(theirs.std())


def drawn(kind: str, windowed: bool) -> families.Model:
    """The first drawn model of a kind with a window, or without."""
    models = (families.draw(kind, seed, block=32, vocab=420) for seed in range(60))
    return next(model for model in models if bool(model.shape.window) is windowed)


def written(model: families.Model, recipe: str, definition: Any, folder: Path) -> Path:  # noqa: F811
    """A GGUF of its folder with a tokenizer, without which llama.cpp loads none."""
    path, out = model.folder(folder / "m"), folder / f"{recipe}.gguf"
    (path / "tokenizer.json").write_text(json.dumps(definition))
    assert quantize([str(path), "-o", str(out), "--recipe", recipe]) == 0
    return out
