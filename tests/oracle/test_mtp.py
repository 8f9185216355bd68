"""The block for multi-token prediction against the torch module that it was trained as, and further drafts with it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ds4ref.archs.deepseek4.mtp import Block, Window
from ds4ref.drafts.mtp import Mtp
from ds4ref.engine import Engine
from ds4ref.nano.checkpoint import to_bf16, tokenizer, write_trained
from ds4ref.nano.skills import held_out
from ds4ref.nano.train.model import Model, Pass, load_published
from ds4ref.nano.train.shape import SHAPE
from ds4ref.nano.trained import weights_folder
from ds4ref.nano.vocab import build_vocabulary
from tests.nano.placeholder import tensors

pytestmark = pytest.mark.oracle

LENGTH = 200
"""Tokens: the window of 64 has moved on twice, and the ring has wrapped."""


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Small products in many threads wait for each other, the longer the busier the machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def random_weights() -> dict[str, np.ndarray]:
    """Values that a folder holds as they are."""
    return {
        name: (to_bf16(values).astype(np.uint32) << 16).view(np.float32).reshape(values.shape)
        if not name.endswith("tid2eid") else values
        for name, values in tensors(SHAPE).items()
    }  # fmt: skip


def trained_weights() -> dict[str, np.ndarray]:
    from safetensors.torch import load_file

    return {name: v.float().numpy() for name, v in load_file(Path(weights_folder()) / "model.safetensors").items()}


@pytest.fixture(scope="module", params=["random", "trained"])
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The engine, the block, and the module with the same weights."""
    folder = Path(weights_folder())
    if request.param == "random":
        folder, weights = tmp_path_factory.mktemp("random") / "m", random_weights()
        words = build_vocabulary(SHAPE.vocab)
        write_trained(folder, SHAPE, weights, tokenizer(words.tokens, words.merges))
    else:
        weights = trained_weights()
    module = Model(SHAPE).eval()
    load_published(module, weights)
    with Engine.open(folder, numerics="exact", threads=1) as engine:
        block = Block.open(folder, engine.model)
        yield engine, block, module
        block.close()


@pytest.fixture(scope="module")
def text(pair: Any) -> list[int]:
    items = held_out("think/sums3", 12, seed=3)
    return pair[0].tokenizer.encode("".join(item.prompt().text + item.answer() for item in items))[:LENGTH]


@torch.no_grad()
def of_torch(module: Model, X: torch.Tensor, after: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Streams (T, C, D) and logits (T, V) of the module's block for streams X and the tokens after them."""
    ids = torch.tensor([after])
    streams = module.predict_next(X, ids, Pass(ids, dense=False))
    return streams.numpy(), module.next_logits(streams).numpy()


@torch.no_grad()
def streams_of(module: Model, text: list[int]) -> torch.Tensor:
    return module.streams(Pass(torch.tensor([text]), dense=False))


def far(got: np.ndarray, wanted: np.ndarray) -> float:
    return float(np.abs(got - wanted).max() / wanted.std())


def test_logits_and_streams_at_every_position(pair: Any, text: list[int]) -> None:
    engine, block, module = pair
    X, rows = streams_of(module, text), Window(block)
    wanted_streams, wanted = of_torch(module, X[:-1], text[1:])
    for at in range(len(text) - 1):
        streams, logits = block.forward(X[at : at + 1].numpy(), text[at + 1 : at + 2], rows)
        assert far(streams[0], wanted_streams[at]) < 2e-4, at
        assert far(logits[0], wanted[at]) < 2e-4, at


def test_the_whole_way_and_further_drafts(pair: Any, text: list[int]) -> None:
    """From our own streams: drafts 1 to 4 are the best tokens of the module, whose streams stand for the model's from
    there on."""
    engine, block, module = pair
    ours: list[np.ndarray] = []
    engine.session(LENGTH + 1).extend(text, streams=ours)
    known, X = np.concatenate(ours), streams_of(module, text)
    assert far(known, X.numpy()) < 1e-3
    mtp = Mtp(block)
    seen = 0
    for end in (1, 2, 50, 63, 64, 65, 66, 129, 130, LENGTH - 1):
        drafts = mtp.propose(text[: end + 1], known[seen:end], 4)
        seen = end
        chain, after = X[:end], text[1 : end + 1]
        for draft in drafts:
            streams, logits = of_torch(module, chain, after)
            best = logits[-1].max()
            assert best - logits[-1][draft] < 1e-3 * logits[-1].std(), (end, drafts)
            chain = torch.cat([chain, torch.from_numpy(streams[-1:])])
            after = [*after, draft]
