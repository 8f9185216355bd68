"""The trainer's module against Hugging Face's: logits and every gradient, float32."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ds4ref.archs.deepseek4.published import LAYER_NAMES as PUBLISHED
from ds4ref.archs.deepseek4.published import MODEL_NAMES
from ds4ref.archs.deepseek4.shape import PREFIX
from ds4ref.nano.train.model import Model, Pass, published
from ds4ref.nano.train.shape import SHAPE

from . import hf

pytestmark = pytest.mark.oracle

TOP = {theirs: hf.TOP_NAMES[ours] for ours, theirs in MODEL_NAMES.items()}
LAYER = {theirs: hf.LAYER_NAMES[ours] for ours, theirs in PUBLISHED.items()}


def by_their_names(weights: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Rename published names, without the block of multi-token prediction, to Hugging Face's."""
    state = {TOP[name]: values for name, values in weights.items() if name in TOP}
    for layer in range(SHAPE.n_layers):
        theirs, ours = f"model.layers.{layer}.", f"layers.{layer}."
        for name, target in LAYER.items():
            if ours + name in weights:
                state[theirs + target] = weights[ours + name]
        part = lambda which, layer=layer: [  # noqa: E731
            weights[f"layers.{layer}.ffn.experts.{e}.{which}.weight"] for e in range(SHAPE.n_experts)
        ]
        both = [np.concatenate(pair) for pair in zip(part("w1"), part("w3"), strict=True)]
        state[theirs + "mlp.experts.gate_up_proj"] = np.stack(both)
        state[theirs + "mlp.experts.down_proj"] = np.stack(part("w2"))
    return state


@pytest.fixture(scope="module")
def pair() -> tuple[Model, torch.nn.Module]:
    """Our module with weights that make every part matter, and Hugging Face's with the same."""
    torch.manual_seed(0)
    ours = Model(SHAPE)
    with torch.no_grad():
        for name, parameter in ours.named_parameters():
            if parameter.ndim == 1 or "ape" in name:
                parameter.add_(0.2 * torch.randn_like(parameter))
            if "hc_" in name and name.endswith("scale"):
                parameter.fill_(0.7)
    meta = {key.removeprefix(PREFIX): value for key, _, value in SHAPE.metadata()}
    config = hf.config_from_metadata(meta)
    config._experts_implementation = "eager"
    theirs = hf.DeepseekV4ForCausalLM(config)
    state = {name: torch.from_numpy(values) for name, values in by_their_names(published(ours)).items()}
    missing = theirs.load_state_dict(state, strict=False)
    assert not missing.unexpected_keys
    assert all("inv_freq" in name or name.endswith("e_score_correction_bias") for name in missing.missing_keys), missing
    return ours, theirs.float().train()


@pytest.mark.parametrize("tokens", [1, 3, 64, 65, 300])
def test_logits_are_equal_to_float_noise(pair, tokens):
    ours, theirs = pair
    ids = torch.randint(0, SHAPE.vocab, (2, tokens), generator=torch.Generator().manual_seed(tokens))
    with torch.no_grad():
        a, b = ours(ids), theirs(ids, use_cache=False).logits
    assert float((a - b).abs().max()) < 5e-5 * float(b.std())


def test_gradients_are_equal_to_float_noise(pair):
    ours, theirs = pair
    ids = torch.randint(0, SHAPE.vocab, (1, 300), generator=torch.Generator().manual_seed(9))
    pick = torch.randn(300, SHAPE.vocab, generator=torch.Generator().manual_seed(1)) / 300
    for model, logits in ((ours, lambda: ours(ids)), (theirs, lambda: theirs(ids, use_cache=False).logits)):
        model.zero_grad()
        (logits()[0].log_softmax(-1) * pick).sum().backward()
    grads = {}
    for name, parameter in ours.named_parameters():
        grads[name] = parameter.grad if parameter.grad is not None else torch.zeros_like(parameter)
    mine = Model(SHAPE)
    with torch.no_grad():
        for name, parameter in mine.named_parameters():
            parameter.copy_(grads[name])
    renamed = by_their_names(published(mine))
    worst = {}
    for name, parameter in theirs.named_parameters():
        if "indexer" in name or "e_score" in name or name.endswith("tid2eid"):
            continue  # the indexer learns by a loss of its own, the rest does not learn by gradients
        a, b = torch.from_numpy(renamed[name]), parameter.grad
        worst[name] = float((a - b).norm() / b.norm())
    assert max(worst.values()) < 2e-4, sorted(worst.items(), key=lambda item: -item[1])[:5]


def test_dense_differs_where_rows_are_selected(pair):
    ours, _ = pair
    ids = torch.randint(0, SHAPE.vocab, (1, 200), generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        a, b = ours(ids), ours(ids, dense=True)
    first = 4 * (SHAPE.index_topk + 1) - 1  # the first token that sees more rows than it may select
    assert torch.equal(a[:, :first], b[:, :first])
    assert float((a[:, first:] - b[:, first:]).abs().max()) > 1e-3


def test_the_indexer_learns_from_attention_alone(pair):
    ours, _ = pair
    ours.zero_grad()
    run = Pass(torch.randint(0, SHAPE.vocab, (1, 200), generator=torch.Generator().manual_seed(3)), False)
    ours.streams(run)
    torch.stack(run.index_loss).sum().backward()
    learnt = {name for name, p in ours.named_parameters() if p.grad is not None and bool(p.grad.abs().max() > 0)}
    assert learnt == {name for name, _ in ours.named_parameters() if ".indexer." in name}
    before = float(torch.stack(run.index_loss).detach().sum())
    kept = {name: ours.get_parameter(name).detach().clone() for name in learnt}
    with torch.no_grad():
        for name in learnt:
            p = ours.get_parameter(name)
            p -= 0.01 * p.grad
    again = Pass(run.ids, False)
    ours.streams(again)
    assert 0 < float(torch.stack(again.index_loss).detach().sum()) < before
    with torch.no_grad():
        for name, value in kept.items():
            ours.get_parameter(name).copy_(value)
