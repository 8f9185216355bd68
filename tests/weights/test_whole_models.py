"""Files that are part of a model, or would be refused: what is read of llama.cpp's files, and what is never written."""

from __future__ import annotations

import numpy as np
import pytest

from ds4ref.archs import costs_of
from ds4ref.archs.deepseek4.shape import ModelShape
from ds4ref.archs.deepseek4.weights import expected_tensors
from ds4ref.cli.ds4 import main as ds4
from ds4ref.cli.quantize import main as quantize
from ds4ref.errors import ShapeError
from ds4ref.weights import open_source

from .modelfile import SMALL, TOKENS, open_metadata, with_metadata, write_model

SIZE = "deepseek4.vocab_size"
EMBEDDING = "token_embd.weight"
CONVERTED = {SIZE: None, "split.count": ("u16", 0), "split.no": ("u16", 0), "split.tensors.count": ("i32", 92)}
"""What llama.cpp's converter writes otherwise than we do (more: ``tests/archs/test_checkpoint.py``)."""


def entries(**changes):
    return with_metadata(SMALL.metadata() + TOKENS, {**CONVERTED, **changes})


def test_the_size_of_the_vocabulary_is_that_of_the_embedding(tmp_path):
    path = write_model(tmp_path / "c.gguf", metadata=entries())
    with open_source(path) as source:
        assert ModelShape.from_metadata(source) == SMALL
    assert quantize([str(path), "-o", str(tmp_path / "q.gguf"), "--recipe", "q8"]) == 0
    with open_source(tmp_path / "q.gguf") as made:
        assert costs_of(made).shape == SMALL
        assert not any(key.startswith("split.") for key in made.metadata)


@pytest.mark.parametrize("count", [SMALL.vocab - 1, SMALL.vocab + 1])
def test_a_vocabulary_of_another_size_than_the_embedding(tmp_path, count):
    tokens = [f"token {i}" for i in range(count)]
    path = write_model(tmp_path / "c.gguf", metadata=entries(**{"tokenizer.ggml.tokens": ("string[]", tokens)}))
    with open_source(path) as source, pytest.raises(ShapeError) as caught:
        ModelShape.from_metadata(source)
    says = f"{SIZE} is missing, tokenizer.ggml.tokens has {count} tokens and {EMBEDDING} {SMALL.vocab} rows"
    assert str(caught.value).endswith(says)


def test_neither_a_size_nor_an_embedding(tmp_path):
    with pytest.raises(ShapeError, match=f"{SIZE} is missing, and {EMBEDDING} too"):
        ModelShape.from_metadata(open_metadata(tmp_path, entries()))


def _other(key, kind, value):
    return lambda: (entries(**{key: (kind, value)}), None)


REFUSED = {
    "an unknown key": (_other("deepseek4.surprise", "u32", 1), "deepseek4.surprise is 1: unknown here"),
    "an unknown family": (_other("general.architecture", "string", "rwkv7"), "architecture 'rwkv7' is not one of"),
    "a tensor without a place": (
        lambda: (entries(), [("blk.0.surprise.weight", (256,))]), "blk.0.surprise.weight has no place in"
    ),
    "a tensor that is missing": (lambda: (entries(), "output_norm.weight"), "output_norm.weight is missing"),
    "a key that is missing": (
        lambda: (entries(**{"deepseek4.block_count": None}), None), "deepseek4.block_count is missing"
    ),
}  # fmt: skip


@pytest.mark.parametrize("reason", REFUSED)
@pytest.mark.parametrize("way", ["quantize", "template", "splice"])
def test_what_would_be_refused_is_not_written(tmp_path, capsys, way, reason):
    from ds4ref.weights.writer import TensorSpec

    build, says = REFUSED[reason]
    metadata, change = build()
    specs = expected_tensors(SMALL, "q2")
    if isinstance(change, str):
        specs = [spec for spec in specs if spec.name != change]
    elif change:
        specs = [*specs, *(TensorSpec(name, "F32", dims) for name, dims in change)]
    data = {"blk.0.surprise.weight": np.ones(256, "<f4").view(np.uint8)}
    bad = str(write_model(tmp_path / "bad.gguf", metadata=metadata, specs=specs, data=data))
    out = tmp_path / "o.gguf"
    argv = {
        "quantize": [bad, "-o", str(out), "--recipe", "q8"],
        "template": [bad, "-o", str(out), "--template", bad],
        "splice": [bad, "--donor", bad, "--layers", "0", "-o", str(out)],
    }[way]
    assert quantize(argv) == 1
    err = capsys.readouterr().err
    assert says in err and err.count("\n") == 1
    assert list(tmp_path.iterdir()) == [tmp_path / "bad.gguf"]
    assert ds4(["--inspect", bad]) == 1  # the source is refused for the same reason
    assert says in capsys.readouterr().err
