"""The embedded model's trainer: its module against Hugging Face's, its optimizer, a run resumed to the bit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from ds4ref.archs.deepseek4.published import LAYER_NAMES as PUBLISHED
from ds4ref.archs.deepseek4.published import MODEL_NAMES
from ds4ref.archs.deepseek4.shape import PREFIX
from ds4ref.engine import Engine
from ds4ref.nano.skills.curriculum import STAGES, Rows
from ds4ref.nano.train import drafter, loop
from ds4ref.nano.train.batches import Batch, score
from ds4ref.nano.train.loop import Goal, Run
from ds4ref.nano.train.model import Model, Pass, load_published, published
from ds4ref.nano.train.optim import orthogonal
from ds4ref.nano.train.shape import SHAPE
from ds4ref.variants.drafters import observe, opened

from . import hf

pytestmark = pytest.mark.oracle

TOP = {theirs: hf.TOP_NAMES[ours] for ours, theirs in MODEL_NAMES.items()}
LAYER = {theirs: hf.LAYER_NAMES[ours] for ours, theirs in PUBLISHED.items()}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Sums of two threads come in any order."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def by_their_names(weights: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Rename published names, without the block of multi-token prediction, to Hugging Face's."""
    state = {TOP[name]: values for name, values in weights.items() if name in TOP}
    for layer in range(SHAPE.n_layers):
        theirs, ours = f"model.layers.{layer}.", f"layers.{layer}."
        for name, target in LAYER.items():
            if ours + name in weights:
                state[theirs + target] = weights[ours + name]
        w1, w2, w3 = (
            [weights[f"{ours}ffn.experts.{e}.{part}.weight"] for e in range(SHAPE.n_experts)]
            for part in ("w1", "w2", "w3")
        )
        both = [np.concatenate(pair) for pair in zip(w1, w3, strict=True)]
        state[theirs + "mlp.experts.gate_up_proj"] = np.stack(both)
        state[theirs + "mlp.experts.down_proj"] = np.stack(w2)
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
    config = hf.config_from_metadata({key.removeprefix(PREFIX): value for key, _, value in SHAPE.metadata()})
    config._experts_implementation = "eager"
    theirs = hf.DeepseekV4ForCausalLM(config)
    state = {name: torch.from_numpy(values) for name, values in by_their_names(published(ours)).items()}
    missing = theirs.load_state_dict(state, strict=False)
    assert not missing.unexpected_keys
    assert all("inv_freq" in name or name.endswith("e_score_correction_bias") for name in missing.missing_keys), missing
    return ours, theirs.eval()


def test_logits_and_gradients_are_equal_to_float_noise(pair):
    ours, theirs = pair
    ids = torch.randint(0, SHAPE.vocab, (1, 300), generator=torch.Generator().manual_seed(9))
    pick = torch.randn(300, SHAPE.vocab, generator=torch.Generator().manual_seed(1)) / 300
    logits = {}
    for name, model in (("ours", ours), ("theirs", theirs)):
        model.zero_grad()
        logits[name] = ours(ids)[0] if model is ours else theirs(ids, use_cache=False).logits[0]
        (logits[name].log_softmax(-1) * pick).sum().backward()
    assert float((logits["ours"] - logits["theirs"]).detach().abs().max()) < 5e-5 * float(
        logits["theirs"].detach().std()
    )
    mine = Model(SHAPE)
    with torch.no_grad():
        for parameter, source in zip(mine.parameters(), ours.parameters(), strict=True):
            parameter.copy_(source.grad if source.grad is not None else torch.zeros_like(source))
    renamed = by_their_names(published(mine))
    for name, parameter in theirs.named_parameters():
        if "indexer" in name or "e_score" in name or name.endswith("tid2eid"):
            continue  # the indexer learns by a loss of its own, the rest does not learn by gradients
        apart = (torch.from_numpy(renamed[name]) - parameter.grad).norm() / parameter.grad.norm()
        assert float(apart) < 2e-4, name


def test_the_indexer_learns_from_attention_alone_and_selects_rows(pair):
    ours, _ = pair
    ours.zero_grad()
    ids = torch.randint(0, SHAPE.vocab, (1, 200), generator=torch.Generator().manual_seed(3))
    run = Pass(ids, False)
    ours.streams(run)
    torch.stack(run.index_loss).sum().backward()
    learnt = {name for name, p in ours.named_parameters() if p.grad is not None and bool(p.grad.abs().max() > 0)}
    assert learnt == {name for name, _ in ours.named_parameters() if ".indexer." in name}
    with torch.no_grad():
        a, b = ours(ids), ours(ids, dense=True)
    first = 4 * (SHAPE.index_topk + 1) - 1  # the first token that sees more rows than it may select
    assert torch.equal(a[:, :first], b[:, :first])
    assert float((a[:, first:] - b[:, first:]).abs().max()) > 1e-3


def test_muon_sets_singular_values_to_about_one():
    values = torch.linalg.svdvals(orthogonal(torch.randn(3, 128, 64)))
    assert 0.5 < float(values.min()) and float(values.max()) < 1.4


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let runs consist of small steps on short rows, on the CPU."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setitem(STAGES, "tiny", (Rows(64, 1.0, {"echo": 1}),))
    monkeypatch.setattr(loop, "PLAN", (Goal("tiny", 1000, 128, right=0.5, scores={"facts": 0.9}), Goal("tiny", 9, 128)))
    monkeypatch.setattr(loop, "NEXT_EVERY", 2)


def test_a_run_resumes_to_the_bit(tmp_path: Path, short):
    whole, part = Run(tmp_path / "whole"), Run(tmp_path)
    for _ in range(5):
        whole.step()
    for _ in range(3):
        part.step()
    part.save()
    rest = Run(tmp_path)
    assert rest.progress.step == 3
    for _ in range(2):
        rest.step()
    assert all(np.array_equal(a, published(rest.model)[name]) for name, a in published(whole.model).items())
    for a, b in zip((*whole.main, *whole.next), (*rest.main, *rest.next), strict=True):
        states = zip(a.state.values(), b.state.values(), strict=True)
        assert all(torch.equal(old[name], new[name]) for old, new in states for name in old)


def test_weights_survive_their_published_names():
    first, second = Model(SHAPE), Model(SHAPE)
    load_published(second, published(first))
    ids = torch.randint(0, SHAPE.vocab, (1, 70))
    assert torch.equal(first(ids), second(ids))


def test_a_goal_is_reached_by_all_its_measures_or_by_tokens(tmp_path: Path, short):
    run = Run(tmp_path)
    for right, facts, tokens, goal in ((0.6, 0.8, 999, 0), (0.4, 0.95, 999, 0), (0.5, 0.9, 0, 1), (0, 0, 1000, 1)):
        run.progress = loop.Progress(right=right, scores={"facts": facts}, goal_tokens=tokens)
        run.advance()
        assert run.progress.goal == goal


def test_rates_warm_up_and_fall_to_zero(tmp_path: Path, short):
    run = Run(tmp_path)
    assert run.rates() == (loop.MUON / loop.WARM_UP, loop.ADAM / loop.WARM_UP)
    for step, share in ((100, 1), (103, 0.25), (104, 0)):
        run.progress = loop.Progress(step=step, finish=(100, 4))
        assert run.rates() == (loop.MUON * share, loop.ADAM * share)
    assert loop.descent(59.9, 100, 0.4, 600) == 0 and loop.descent(70, 100, 0.4, 0) == 0
    assert loop.descent(60, 100, 0.4, 600) == 380  # 40 s at ten steps a second, and a twentieth to spare


def test_the_token_after_the_next_is_learned_where_both_are_wanted(tmp_path: Path, short, monkeypatch):
    run = Run(tmp_path)
    ids = torch.arange(10, 22).reshape(2, 6)
    # targets (0, 1), (0, 2), (0, 3), (0, 5) and (1, 1), (1, 4)
    weights = torch.tensor([[0.0, 1, 2, 3, 0, 4], [0, 5, 0, 0, 6, 0]])
    batch = Batch.of(ids, weights)
    assert batch.wanted.tolist() == [0, 1, 2, 4, 6, 9] and batch.targets.tolist() == [11, 12, 13, 15, 17, 20]
    seen = {}
    monkeypatch.setattr(run.model, "predict_next", lambda streams, after, _: streams + after.flatten()[:, None])
    monkeypatch.setattr(run.model, "next_logits", lambda streams: streams)
    monkeypatch.setattr(loop, "weighted", lambda *given: seen.update(zip("slw", given, strict=True)))
    run.next_loss(torch.zeros(12, 1), batch, loop.Pass(ids, False))
    assert seen["w"].tolist() == [2.0, 3.0, 0.0, 0.0, 0.0, 0.0], "the weight of t + 2, and none across rows"
    assert seen["l"][:2].tolist() == [12, 13], "positions 0 and 1 predict two tokens on"
    assert seen["s"][:2, 0].tolist() == [11, 12], "from the token after"


def test_a_run_ends_with_its_descent_and_scores(tmp_path: Path, short, monkeypatch):
    monkeypatch.setattr(loop, "GRADED", ("facts",))
    monkeypatch.setattr(loop, "descent", lambda *_: 2)
    run = Run(tmp_path)
    loop.train(run, 600, 0.4)
    assert run.progress.finish == (1, 2) and run.progress.scores == {"facts": 0.0}
    assert score(run.model, "facts", 4, run.tokenizer) == 0
    assert len((tmp_path / "log.jsonl").read_text().splitlines()) == 3 and Run(tmp_path).progress.step == 3


def test_a_trained_drafter_is_the_one_that_drafts(trained_path: str, tmp_path: Path) -> None:
    """Guesses of the torch module for blocks with less than a window of rows before them, one and more; the file that
    is written is the module as rounded in training."""
    torch.manual_seed(3)
    training = drafter.Training(tmp_path)
    with torch.no_grad():
        for parameter in training.drafter.parameters():
            parameter += 0.05 * torch.randn_like(parameter)
    drafter.export(training.drafter, tmp_path / "d.gguf")
    ids = training.batch(5)[0][:1, :200]
    at = torch.tensor([1, 5, SHAPE.window, 190])
    with torch.no_grad(), training.rounded():
        taps, _ = training.context(ids)
        logits, sure = training.drafter(training.model, taps, ids, torch.zeros_like(at), at, Pass(ids, False))
    with Engine.open(trained_path, numerics="exact") as engine, opened(str(tmp_path / "d.gguf"), engine) as ours:
        seen = observe(engine, ours, ids[0].tolist())
        np.testing.assert_allclose(seen.after, taps[0], atol=1e-4 * float(taps.std()))
        for place, wanted, chance in zip(at.tolist(), logits.numpy(), sure.sigmoid().numpy(), strict=True):
            rows = ours.rows()
            rows.restart(max(0, place - rows.most))
            ours.inject(seen.after[rows.pos : place], rows)
            forced = iter(ids[0, place + 1 :].tolist())
            guess = ours.guess(int(ids[0, place]), rows, lambda logits, forced=forced: next(forced))
            np.testing.assert_allclose(guess.logits, wanted, atol=2e-4 * wanted.std())
            np.testing.assert_allclose(guess.confidence, chance, atol=1e-4)
