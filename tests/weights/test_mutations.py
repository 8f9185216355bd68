"""Every kind of file that a model comes in, damaged at random: one line of error or something usable, soon, in little
memory. Each kind has its share of the draws; headers and indexes of safetensors have their own in test_safetensors."""

from __future__ import annotations

import json
import random
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from ds4ref.archs import arch_of
from ds4ref.errors import Ds4Error
from ds4ref.text.vocabulary import open_tokenizer
from ds4ref.weights import open_source
from ds4ref.weights.quantize.imatrix import Imatrix, TensorImportance, read_imatrix, write_imatrix
from ds4ref.weights.safetensors import INDEX

from ..archs import dense
from ..text.test_library import definition  # noqa: F401
from ..text.test_template import CHATML
from . import llama2c
from .mutate import damaged, mutated

SECONDS, MEMORY = 10.0, 96 << 20
TEXT = "the stone <|im_end|> é€ sat"


@dataclass
class Kind:
    """A file to damage (``first`` bytes of it, 0 for all), and what is done with what it belongs to."""

    path: Path
    spoil: Callable[..., bytes]
    use: Callable[[], None]
    first: int = 0


def bound(path: Path, chat: bool = False) -> None:
    """All that opening an engine does before it computes, and its tokenizer at work; with ``chat`` its template, too,
    which starts a process."""
    with open_source(path) as source:
        arch = arch_of(source)
        shape = arch.read_shape(source)
        arch.bind(source, shape)
        tokenizer = open_tokenizer(source)
        ids = tokenizer.encode(TEXT)
        assert all(0 <= i < len(tokenizer) for i in ids)
        assert all(0 <= i < len(tokenizer) for i in tokenizer.ends)
        if chat and tokenizer.chats:
            tokenizer.chat([{"role": "user", "content": TEXT}])


def usable(path: Path) -> None:
    for entry in read_imatrix(path).entries.values():
        assert np.isfinite(entry.usable()).all()


@pytest.fixture(scope="module")
def kinds(tmp_path_factory, definition) -> dict[str, Kind]:  # noqa: F811
    folder = tmp_path_factory.mktemp("mutations")
    found: dict[str, Kind] = {}
    table = Imatrix(
        {"blk.0.ffn_up.weight": TensorImportance(np.full((3, 8), 0.5, np.float32), np.array([4.0, 0, 9]))}, ["t"], 5
    )
    for name in ("i.dat", "i.gguf"):
        write_imatrix(folder / name, table)
        found[name] = Kind(folder / name, damaged, lambda path=folder / name: usable(path))
    c = llama2c.Config()
    weights, tokens = llama2c.draw(c), llama2c.vocabulary(c)
    layouts = {"legacy": llama2c.legacy(c, weights), "version 1": llama2c.version_1(c, weights),
               "version 2": llama2c.version_2(c, weights)[0]}  # fmt: skip
    for name, data in layouts.items():
        (folder / name).mkdir()
        path = llama2c.write(folder / name, data, tokens)
        found[name] = Kind(path, damaged, lambda path=path: bound(path), 64)
    found["tokenizer.bin"] = Kind(path.parent / "tokenizer.bin", damaged, lambda: bound(path))
    for family in dense.FAMILIES:
        shape = replace(dense.draw_shape(3, dense.FAMILIES[family]), vocab=420)
        at = dense.published(folder / family, shape, dense.draw_tensors(shape, 3, tied=False), 1 << 12)
        (at / "tokenizer.json").write_text(json.dumps(definition))
        settings = {"chat_template": CHATML, "eos_token": {"content": "<|im_end|>"}, "bos_token": None}
        (at / "tokenizer_config.json").write_text(json.dumps(settings))
        (at / "generation_config.json").write_text(json.dumps({"eos_token_id": [300, 3], "bos_token_id": 2}))
        files = ["config.json", INDEX]
        files += ["tokenizer_config.json", "generation_config.json"] if family == "qwen3" else []
        for name in files:
            found[f"{family} {name}"] = Kind(
                at / name, mutated, lambda at=at, chat="tokenizer" in name: bound(at, chat)
            )
    return found


@pytest.mark.thorough
@pytest.mark.parametrize("total", [540, pytest.param(5000, marks=pytest.mark.slow)])
def test_mutations(kinds, total):
    rng = random.Random(20261123)
    refused = dict.fromkeys(kinds, 0)
    for name, kind in kinds.items():
        kind.use()
        clean = kind.path.read_bytes()
        for number in range(total // len(kinds)):
            spoiled = kind.spoil(rng, clean, *((kind.first,) if kind.first else ()))
            kind.path.write_bytes(spoiled)
            traced = number % 8 == 0
            if traced:
                tracemalloc.start()
            started = time.process_time()
            try:
                kind.use()
            except Ds4Error as error:
                refused[name] += 1
                text = str(error)
                assert "\n" not in text and text.isprintable() and len(text) < 1000, text
            except Exception as error:
                raise AssertionError(f"{name}: {type(error).__name__} for {spoiled[:2000]!r}") from error
            finally:
                peak = tracemalloc.get_traced_memory()[1] if traced else 0
                tracemalloc.stop()
            assert time.process_time() - started < SECONDS, (name, spoiled[:2000])
            assert peak < MEMORY, (name, peak, spoiled[:2000])
        kind.path.write_bytes(clean)
        kind.use()
    for name, count in refused.items():
        assert count > 0 and count < total // len(kinds), (name, count)  # both happen
