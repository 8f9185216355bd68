"""The training loop: compiled hyper-connections against their plain form, the optimizer, a run resumed to the bit."""

from __future__ import annotations

import json
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from ds4ref.nano.skills import tokenizer
from ds4ref.nano.skills.curriculum import STAGES, Rows, Stage
from ds4ref.nano.train import loop
from ds4ref.nano.train.batches import Batch, Feed, score, training_batch
from ds4ref.nano.train.fused import Norm
from ds4ref.nano.train.loop import Goal, Run, look_back
from ds4ref.nano.train.model import Experts, HyperConnection, Model, load_published, published
from ds4ref.nano.train.model import rotate as loop_rotate
from ds4ref.nano.train.optim import Optimizer, orthogonal
from ds4ref.nano.train.shape import SHAPE

pytestmark = pytest.mark.oracle

TINY = Stage("tiny", "", (Rows(64, 1.0, {"echo": 1}),))


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Compute as training does, one process a core: sums of two threads come in any order."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let runs consist of small steps on short rows."""
    monkeypatch.setitem(STAGES, "tiny", TINY)
    monkeypatch.setattr(loop, "PLAN", (Goal("tiny", 1 << 60, 128),))
    monkeypatch.setattr(loop, "NEXT_EVERY", 2)


def gradients(outputs, inputs):
    """Return the gradients of a fixed random combination of the outputs."""
    generator = torch.Generator().manual_seed(5)
    total = sum((out * torch.randn(out.shape, generator=generator)).sum() for out in outputs)
    return torch.autograd.grad(total, inputs)


def test_compiled_hyper_connections_equal_their_plain_form_with_all_gradients():
    torch.manual_seed(1)
    hyper = HyperConnection(SHAPE)
    with torch.no_grad():
        hyper.scale.fill_(0.8)
    x = torch.randn(7, SHAPE.hc, SHAPE.dim, requires_grad=True)
    y = torch.randn(7, SHAPE.dim, requires_grad=True)
    inputs = (x, y, hyper.fn, hyper.scale, hyper.base)
    h, post, comb = hyper.pre(x)
    fast = (h, post, comb, hyper.post(x, y, post, comb))
    h, post, comb = hyper.plain_pre(x)
    plain = (h, post, comb, post[..., None] * y[:, None] + comb.transpose(1, 2) @ x)
    for a, b in zip(fast, plain, strict=True):
        assert torch.allclose(a, b, rtol=1e-5, atol=1e-6)
    for a, b in zip(gradients(fast, inputs), gradients(plain, inputs), strict=True):
        assert float((a - b).norm() / b.norm()) < 1e-5


def test_the_compiled_norm_equals_torch():
    x = torch.randn(5, 96, requires_grad=True)
    w = torch.rand(96, requires_grad=True)
    pair = [(Norm.apply(x, w, 1e-6),), (torch.nn.functional.rms_norm(x, (96,), w, 1e-6),)]
    assert torch.allclose(*(out[0] for out in pair), rtol=1e-6, atol=1e-6)
    for a, b in zip(*(gradients(out, (x, w)) for out in pair), strict=True):
        assert torch.allclose(a, b, rtol=1e-5, atol=1e-6)


def test_muon_sets_singular_values_to_about_one():
    values = torch.linalg.svdvals(orthogonal(torch.randn(3, 64, 128)))
    assert 0.5 < float(values.min()) and float(values.max()) < 1.4


def test_two_processes_share_the_work_without_changing_it(monkeypatch):
    """The parts that each of two processes computes add up to what one process computes alone."""
    torch.manual_seed(2)
    first = Model(SHAPE)
    weights = published(first)
    results = []
    for world in (1, 2):
        parts = []
        for rank in range(world):
            model = Model(SHAPE)
            load_published(model, weights)
            optimizer = Optimizer(model)
            optimizer.gradient.copy_(torch.randn(optimizer.gradient.shape, generator=torch.Generator().manual_seed(3)))
            monkeypatch.setattr(loop.dist, "all_reduce", lambda tensor: None)
            optimizer.step(1e-2, 1e-3, rank, world)
            parts.append(optimizer.update.clone())
        results.append(sum(parts))
    assert torch.allclose(*results, rtol=1e-4, atol=1e-6)


def test_a_run_goes_on_to_the_bit(tmp_path, short):
    whole = Run(tmp_path / "whole", 0, 1)
    for _ in range(5):
        whole.step()
    part = Run(tmp_path, 0, 1)
    for _ in range(3):
        part.step()
    part.save()
    rest = Run(tmp_path, 0, 1)
    assert rest.progress.step == 3
    for _ in range(2):
        rest.step()
    assert all(np.array_equal(a, published(rest.model)[name]) for name, a in published(whole.model).items())
    assert torch.equal(whole.main.second, rest.main.second) and torch.equal(whole.next.momentum, rest.next.momentum)


def test_weights_survive_their_published_names():
    first, second = Model(SHAPE), Model(SHAPE)
    load_published(second, published(first))
    ids = torch.randint(0, SHAPE.vocab, (1, 70))
    assert torch.equal(first(ids), second(ids))


def test_a_goal_is_reached_by_all_its_measures_or_by_tokens(tmp_path, short, monkeypatch):
    monkeypatch.setattr(loop, "PLAN", (Goal("tiny", 1000, 128, right=0.5, scores={"facts": 0.9}), Goal("tiny", 9, 128)))
    run = Run(tmp_path, 0, 1)
    for right, facts, tokens, goal in ((0.6, 0.8, 999, 0), (0.4, 0.95, 999, 0), (0.5, 0.9, 0, 1)):
        run.progress = loop.Progress(right=right, scores={"facts": facts}, goal_tokens=tokens)
        run.advance()
        assert run.progress.goal == goal
    run.progress = loop.Progress(goal_tokens=1000)
    run.advance()
    assert run.progress.goal == 1 and run.progress.goal_tokens == 0


def test_batches_are_determined_by_their_step_and_differ_between_processes():
    make = lambda step, rank: training_batch(STAGES["mix"], 1, step, rank, 1024, tokenizer())  # noqa: E731
    one, again, other, later = make(3, 0), make(3, 0), make(3, 1), make(4, 0)
    assert torch.equal(one.ids, again.ids) and torch.equal(one.wanted, again.wanted)
    assert not torch.equal(one.ids, other.ids)
    assert one.ids.shape != later.ids.shape or not torch.equal(one.ids, later.ids)
    assert torch.equal(one.ids.flatten()[one.wanted + 1], one.targets)


def test_batches_made_elsewhere_are_those_of_their_steps(monkeypatch):
    """Also after a stage that ended while its next batches were made."""
    feed = Feed(1, seed=1, rank=0)
    try:
        for stage, step in (("mix", 3), ("mix", 4), ("long", 5), ("mix", 5)):
            made, own = feed.get(stage, step, 1024), training_batch(STAGES[stage], 1, step, 0, 1024, tokenizer())
            assert torch.equal(made.ids, own.ids) and torch.equal(made.weights, own.weights)
            assert torch.equal(made.wanted, own.wanted) and torch.equal(made.targets, own.targets)
    finally:
        feed.close()


def test_all_experts_for_all_tokens_give_what_the_chosen_ones_give():
    torch.manual_seed(7)
    experts = Experts(SHAPE, False, 4.0)
    x = torch.randn(9, SHAPE.dim, requires_grad=True)
    weights = torch.rand(9, 2, requires_grad=True)
    chosen = torch.stack([torch.randperm(SHAPE.n_experts)[:2] for _ in range(9)])
    pair = [(way(x, chosen, weights),) for way in (experts.routed, experts.dense_routed)]
    assert torch.allclose(pair[0][0], pair[1][0], atol=1e-5)
    inputs = (x, weights, experts.experts.w13, experts.experts.w2)
    for a, b in zip(*(gradients(out, inputs) for out in pair), strict=True):
        assert float((a - b).norm() / b.norm()) < 1e-5


def test_the_final_descent_begins_when_its_share_of_the_time_is_left():
    assert loop.descent(59.9, 100, 0.4, 600) == 0
    assert loop.descent(60, 100, 0.4, 600) == 380  # 40 s at ten steps a second, and a twentieth to spare
    assert loop.descent(100, 100, 0.4, 600) == 1 and loop.descent(70, 100, 0.4, 0) == 0


def test_the_first_heads_begin_by_looking_back():
    torch.manual_seed(4)
    shape = SHAPE
    model = Model(shape)
    shared = torch.randn(shape.dim)
    attention = model.layers[0].attn
    look_back(attention, shared / shared.norm(), (2,))
    x = 0.7 * (torch.randn(1, 30, shape.dim) + shared)
    rope = model.ropes[False]
    u = attention.q_norm(attention.wq_a(x))
    cos, sin = rope.at(30, torch.device("cpu"))
    q = torch.nn.functional.rms_norm(attention.wq_b(u).reshape(1, 30, shape.n_heads, -1), (shape.head_dim,))
    q = loop_rotate(q, cos[:, None], sin[:, None])
    scores = (q[0, :, 0] @ loop_rotate(attention.kv_norm(attention.wkv(x)), cos, sin)[0].T).tril()
    back = [scores[range(5, 30), range(5 - d, 30 - d)].mean().item() for d in range(5)]
    assert int(np.argmax(back)) == 2


def test_score_counts_questions_whose_whole_reply_is_predicted(monkeypatch):
    model = Model(SHAPE)
    tables = tokenizer()
    assert score(model, "facts", 8, tables) == 0
    from ds4ref.nano.skills import held_out
    from ds4ref.nano.train.batches import item_rows

    follows = {}
    for row, reply in item_rows(held_out("facts", 8), tables)[:3]:
        follows |= {tuple(row[: at + 1]): row[at + 1] for at in range(len(row) - reply - 1, len(row) - 1)}

    def logits(streams):
        out = torch.zeros(len(streams), SHAPE.vocab)
        out[torch.arange(len(streams)), streams] = 1
        return out

    def streams(run, wanted):
        rows, length = run.ids, run.ids.shape[1]
        return torch.tensor(
            [follows.get(tuple(rows[w // length, : w % length + 1].tolist()), 5) for w in wanted.tolist()]
        )

    monkeypatch.setattr(model, "logits", logits)
    monkeypatch.setattr(model, "streams", streams)
    assert score(model, "facts", 8, tables) == 3 / 8


def test_rates_warm_up_and_fall_to_zero(tmp_path, short):
    run = Run(tmp_path, 0, 1)
    assert run.rates() == (loop.MUON / loop.WARM_UP, loop.ADAM / loop.WARM_UP)
    run.main.steps = loop.WARM_UP - 1
    assert run.rates() == (loop.MUON, loop.ADAM)
    run.progress = loop.Progress(step=10, finish=(10, 4))
    assert run.rates() == (loop.MUON, loop.ADAM)
    run.progress.step = 13
    assert run.rates() == (loop.MUON / 4, loop.ADAM / 4)
    run.progress.step = 14
    assert run.rates() == (0, 0)


def test_balance_lifts_experts_that_are_used_too_little(tmp_path, short):
    run = Run(tmp_path, 0, 1)
    bias = run.model.layers[1].ffn.gate.bias
    run.balance(loop.Pass(torch.zeros(1, 1), False, load=[(bias, torch.tensor([9, 5, 1]))]))
    assert torch.allclose(bias.data, loop.BALANCE * torch.tensor([-1.0, 0.0, 1.0]))


def test_the_token_after_the_next_is_learned_where_both_are_wanted(tmp_path, short, monkeypatch):
    run = Run(tmp_path, 0, 1)
    ids = torch.arange(10, 22).reshape(2, 6)
    # targets (0, 1), (0, 2), (0, 3), (0, 5) and (1, 1), (1, 4)
    weights = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    batch = Batch(ids, torch.tensor([0, 1, 2, 4, 6, 9]), torch.tensor([11, 12, 13, 15, 17, 20]), weights)
    seen = {}
    monkeypatch.setattr(run.model, "predict_next", lambda streams, after, _: streams + after.flatten()[:, None])
    monkeypatch.setattr(run.model, "next_logits", lambda streams: streams)
    monkeypatch.setattr(loop, "weighted", lambda *given: seen.update(zip("slw", given, strict=True)))
    run.next_loss(torch.zeros(12, 1), batch, loop.Pass(ids, False))
    assert seen["w"].tolist() == [2.0, 3.0, 0.0, 0.0, 0.0, 0.0], "the weight of t + 2, and none across rows"
    assert seen["l"][:2].tolist() == [12, 13], "positions 0 and 1 predict two tokens on"
    assert seen["s"][:2, 0].tolist() == [11, 12], "from the token after"


def test_compressed_rows_begin_as_the_windows_are(tmp_path, short):
    run = Run(tmp_path, 0, 1)
    loop.reach_far(run.model)
    for layer, copies in ((1, 2), (2, 1)):
        attention = run.model.layers[layer].attn
        assert torch.equal(attention.compressor.wkv.weight, attention.wkv.weight.repeat(copies, 1))


def test_a_run_writes_a_line_a_step_and_ends_with_its_descent(tmp_path, short, monkeypatch):
    monkeypatch.setattr(loop, "GRADED", ("facts",))
    loop.train(0, 1, str(tmp_path), 0, loop.Settings(600, finish=3, seed=4))
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2, 3] and lines[-1]["scores"] == {"facts": 0.0}
    assert torch.load(tmp_path / "checkpoint.pt")["progress"]["finish"] == (0, 3)
    first = training_batch(TINY, 4, 0, 0, 128, tokenizer())
    assert torch.equal(Run(tmp_path / "other", 0, 1, seed=4).batch(loop.PLAN[0]).ids, first.ids)
    assert not torch.equal(Run(tmp_path / "other", 0, 1).batch(loop.PLAN[0]).ids, first.ids)
