"""A model whose layers are in several stages, against one machine: the same bits, files and rules. No Dask here."""

from __future__ import annotations

import gc
import io
import itertools
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ds4ref.cluster.model import ClusterModel
from ds4ref.cluster.stage import Stage, StageSpec, check_family
from ds4ref.engine import Engine
from ds4ref.engine_options import EngineOptions, Steering
from ds4ref.errors import Cancelled, ClusterError, ModelFileError, PayloadError, UsageError
from ds4ref.nano import diagnostic41
from ds4ref.nano.diagnostic41 import diagnostic41_path
from ds4ref.runs import provenance
from ds4ref.session.identity import Identity
from ds4ref.session.session import Session
from ds4ref.targets.local import LocalTarget
from ds4ref.weights.gguf import GGUFFile
from ds4ref.weights.source import Metadata
from tests.marking import sampled

from .links import CUTS, Breaking, split

MODES = ["exact", "qat", "ds4"]
CTX, BYTES = 400, 16
"""Length of contexts; step of ``story`` that yields the size of the caches."""


@pytest.fixture(scope="module")
def engines(nano_path: str) -> dict[str, Engine]:
    paths = {mode: (nano_path, mode) for mode in MODES}
    paths |= {f"v41 {mode}": (diagnostic41_path(), mode) for mode in ("exact", "qat")}
    return {name: Engine.open(path, numerics=mode, threads=1) for name, (path, mode) in paths.items()}


def ids_of(engine: Engine, count: int, seed: int = 3) -> list[int]:
    return [int(token) for token in np.random.default_rng(seed).integers(0, engine.shape.vocab, count)]


def story(session: Session, ids: list[int]) -> Iterator[np.ndarray]:
    """Everything that a session does; yields what it should be equal in."""
    session.sync(ids[:150], chunk=64)
    yield session.logits
    snapshot = session.snapshot()
    for token in ids[150:157]:
        yield session.eval(token)
    yield session.streams
    session.rewind(155)
    yield session.logits
    yield session.eval(ids[200])
    session.restore(snapshot)
    yield session.logits
    yield session.extend(ids[150:170], chunk=7)
    yield session.streams
    session.rewind(168)  # within the last chunk
    yield session.logits
    session.ranked(5)  # from here on
    session.append(ids[201])
    yield np.array([session.argmax(), session.pos, *session.ranked(5)[0]])
    yield np.array(session.cache_bytes)
    session.sync([*ids[:150], *ids[300:310]])  # another continuation: everything again
    yield session.logits


@pytest.mark.parametrize(
    ("model", "stages"),
    sampled(
        [(mode, n) for mode in MODES for n in (1, 2, 3, 5)]
        + [(f"v41 {m}", n) for m in MODES[:2] for n in (1, 2, 3, 5)],
        [("ds4", 3), ("exact", 5), ("v41 qat", 5)],
    ),
)
def test_same_bits_as_one_machine(engines: dict[str, Engine], model: str, stages: int) -> None:
    engine = engines[model]
    ids = ids_of(engine, 320)
    here, there = engine.session(CTX), Session(split(engine, model.split()[-1], stages), CTX)
    for number, (wanted, got) in enumerate(zip(story(here, ids), story(there, ids), strict=True)):
        if model.startswith("v41") and stages > 2 and number == BYTES:
            assert got > wanted  # some parts make rows of earlier layers again
            continue
        np.testing.assert_array_equal(got, wanted, err_msg=f"step {number}")
    assert there.tokens == here.tokens


def test_a_source_may_need_the_blocks_of_an_earlier_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Layer 5 makes rows and chooses among the blocks of layer 2: a part that needs its choice needs both, and no part
    makes the rows of two layers. The streams' width is no multiple of their number."""
    shape = replace(
        diagnostic41.DIAGNOSTIC41, ratios=(0, 0, *(1,) * 7), index_sources=(2, 5, 7), candidate_source=2, hc=3
    )
    monkeypatch.setattr(diagnostic41, "DIAGNOSTIC41", shape)
    diagnostic41.write_diagnostic41(tmp_path / "m.gguf")
    monkeypatch.setitem(CUTS, 9, {6: (*shape.starts, 9)})
    assert shape.starts == [0, 1, 2, 3, 4, 5] and shape.needs(5) == {2}
    with Engine.open(tmp_path / "m.gguf", numerics="qat", threads=1) as engine:
        here, there = engine.session(CTX), Session(split(engine, "qat", 6), CTX)
        for session in (here, there):
            session.sync(ids_of(engine, 200), chunk=90)
        for token in range(3):
            np.testing.assert_array_equal(there.eval(token), here.eval(token))
        assert there.snapshot().shared[1] == 5 * here.snapshot().shared[1] // 2  # in five parts, the rows of layer 2


@pytest.mark.parametrize("after", [False, True])
def test_a_token_lost_on_its_way_is_not_in_the_sequence(engines: dict[str, Engine], after: bool) -> None:
    engine = engines["qat"]
    connect = Breaking(engine, "qat", 2, 0, after)
    here, there = engine.session(40), Session(ClusterModel(engine.shape, engine.model.numerics, connect), 40)
    for session in (here, there):
        session.sync([1, 2, 3])
    connect.at = connect.count + 1
    with pytest.raises(ClusterError):
        there.append(4)
    assert there.tokens == [1, 2, 3]
    np.testing.assert_array_equal(there.logits, here.logits)
    np.testing.assert_array_equal(there.eval(5), here.eval(5))


def saved(session: Session) -> bytes:
    file = io.BytesIO()
    session.save(file)
    return file.getvalue()


@pytest.mark.parametrize("model", ["ds4", "v41 qat"])
def test_a_saved_session_knows_no_split(engines: dict[str, Engine], model: str) -> None:
    """Written by 3 stages: the bytes of one machine, and read by 1 and 5."""
    engine, mode = engines[model], model.split()[-1]
    ids = ids_of(engine, 200)
    here, three = engine.session(CTX), Session(split(engine, mode, 3), CTX)
    for session in (here, three):
        session.sync(ids[:133])
        session.append(ids[133])
    data = saved(here)
    assert saved(three) == data and len(data) == three.payload_bytes()
    wanted = [here.eval(token) for token in ids[134:140]]
    for stages in (1, 5):
        other = Session(split(engine, mode, stages), CTX)
        other.load(io.BytesIO(data))
        assert saved(other) == data
        for token, logits in zip(ids[134:140], wanted, strict=True):
            np.testing.assert_array_equal(other.eval(token), logits)
        other.model.disconnect()  # what was loaded is sent again
        np.testing.assert_array_equal(other.logits, wanted[-1])
        with pytest.raises(PayloadError):
            other.load(io.BytesIO(data[:-4]))
        assert other.tokens == ids[:140]


@pytest.mark.parametrize("step", sampled([1, 17], [17]))
def test_lost_stages_change_nothing(engines: dict[str, Engine], step: int) -> None:
    """Whichever instruction a worker dies with: one error, then the same step gives the same bits."""
    engine = engines["ds4"]
    ids = ids_of(engine, 60)

    def steps(session: Session) -> tuple[list, list]:
        kept: list = []
        return [
            lambda: session.sync(ids[:40], chunk=16, cancel=lambda: False),
            lambda: kept.append(session.snapshot()),
            lambda: session.append(ids[40]),
            lambda: session.append(ids[41]),
            lambda: kept.append(session.logits),
            lambda: session.restore(kept[0]),
            lambda: session.append(ids[42]),
            lambda: kept.append(session.logits),
            lambda: kept.append(saved(session)),
        ], kept

    here = engine.session(64)
    todo, wanted = steps(here)
    for do in todo:
        do()
    for at in itertools.count(1, step):
        connect = Breaking(engine, "ds4", 2, at, after=at % 2 == 0)
        there = Session(ClusterModel(engine.shape, engine.model.numerics, connect), 64)
        todo, got = steps(there)
        errors = 0
        for do in todo:
            try:
                do()
            except ClusterError:
                errors += 1
                do()
        *logits, payload = got[1:]
        np.testing.assert_array_equal(logits, wanted[1:-1], err_msg=f"lost with instruction {at}")
        assert payload == wanted[-1] and there.tokens == here.tokens, at
        if connect.count < at:  # beyond the last instruction
            break
        assert errors == 1 and connect.links == 2, at
    assert at > 25 and errors == 0


def test_making_a_lost_sequence_again_can_be_cancelled(engines: dict[str, Engine]) -> None:
    """Before its first pass and between two; afterwards it is what it was."""
    engine = engines["qat"]
    ids = ids_of(engine, 120)
    here, there = engine.session(CTX), Session(split(engine, "qat", 2), CTX)
    for session in (here, there):
        session.sync(ids[:90], chunk=30)
    there.model.disconnect()
    for allowed in range(4):
        asked = iter([False] * allowed + [True])
        with pytest.raises(Cancelled):
            there.sync(ids, cancel=lambda asked=asked: next(asked))
        assert there.tokens == ids[:90] and next(asked, None) is None
    there.sync(ids[:120], cancel=lambda: False)
    here.sync(ids[:120])
    np.testing.assert_array_equal(there.logits, here.logits)
    gc.collect()
    there.eval(5)
    assert [len(stage._sequences) for stage in there.model.link().stages] == [1, 1]


def test_what_an_engine_on_a_cluster_is(engines: dict[str, Engine]) -> None:
    """Identities as on one machine; never steered."""
    here = engines["qat"]
    there = Engine(here.source, split(here, "qat", 2), here.options)
    assert Identity.of(there).facts == Identity.of(here).facts and there.steering is None
    assert LocalTarget(there).identity() == LocalTarget(here).identity()
    assert provenance.identity(there) == provenance.identity(here)
    places = provenance.engine_facts(there)["cluster"]
    assert [(p["worker"], p["layers"]) for p in places] == [("0", "0-2"), ("1", "3-5")] and here.cluster is None
    assert "cluster" not in provenance.engine_facts(here)
    for steering in (None, Steering(np.zeros((6, here.shape.dim), np.float32), ffn=1.0)):
        with pytest.raises(UsageError, match="a model on a cluster is not steered"):
            there.steered(steering)


@pytest.mark.parametrize("model", ["qat", "v41 qat"])
def test_experts_are_counted_over_all_stages(engines: dict[str, Engine], model: str) -> None:
    here, there = Engine.open(engines[model].path, numerics="qat", threads=1), split(engines[model], "qat", 3)
    for session in (here.session(40), Session(there, 40)):
        session.sync(list(range(20)))
    assert there.experts.summary(5) == here.expert_use(5)
    here.close()


def test_stages_forget_what_nobody_holds(engines: dict[str, Engine]) -> None:
    engine = engines["qat"]
    model = split(engine, "qat", 2)
    for _ in range(3):
        session = Session(model, 40)
        session.sync([1, 2, 3])
        snapshots = [session.snapshot() for _ in range(4)]
        assert snapshots[0].own_bytes > 0
    del session, snapshots
    gc.collect()
    Session(model, 40).sync([1, 2])
    for stage in model.link().stages:
        assert len(stage._sequences) == 1 and not stage._snapshots


@pytest.mark.parametrize("v41", [False, True])
def test_only_the_bytes_of_its_layers_are_touched(nano_path: str, monkeypatch: pytest.MonkeyPatch, v41: bool) -> None:
    read: list[str] = []
    raw, path = GGUFFile.raw, diagnostic41_path() if v41 else nano_path
    monkeypatch.setattr(GGUFFile, "raw", lambda self, name: read.append(name) or raw(self, name))

    def tensors(layers: range) -> set[str]:
        read.clear()
        Stage(StageSpec(path, layers, EngineOptions(backend="reference", numerics="qat", threads=None))).close()
        return set(read)

    first, middle, last = tensors(range(2)), tensors(range(2, 5)), tensors(range(5, 9 if v41 else 6))
    if v41:  # of layer 5, whose rows are read, what makes them
        names = {name.removesuffix(".weight") for name in tensors(range(6, 8)) if name.split(".")[1] == "5"}
        assert len(names) == 8 and all(name[6:].startswith(("attn_q_a", "attn_comp", "indexer")) for name in names)
    assert {name.split(".")[1] for name in first if name.startswith("blk.")} == {"0", "1"}
    assert {name for name in first if not name.startswith("blk.")} == {"token_embd.weight"}
    assert {name.split(".")[1] for name in middle} == {"2", "3", "4"}
    assert {name for name in last if not name.startswith("blk.")} == {
        "output.weight", "output_norm.weight",
        *(f"output_hc_{name}.weight" for name in ("fn", "base", "scale") if not v41),
    }  # fmt: skip
    with GGUFFile.open(path) as file:
        assert first | middle | last == set(file.tensors)


def test_what_is_refused(nano_path: str) -> None:
    for more, said in (
        ({"backend": "cuda"}, "not cuda"),
        ({"advise": False}, "advise is not supported on a cluster"),
        ({"gpu_memory": 0.0}, "GPU memory cannot be set on a cluster"),
        ({"cluster": "nowhere"}, "no address of a Dask scheduler"),
    ):
        with pytest.raises(UsageError, match=said):
            Engine.open(nano_path, **{"cluster": "tcp://127.0.0.1:1", **more})
    from ds4ref.engine_options import Drafting

    with pytest.raises(UsageError, match="draft"):
        Engine.open(nano_path, cluster="tcp://127.0.0.1:1", drafts=Drafting("lookup"))
    llama: Any = SimpleNamespace(path="m.gguf", metadata=Metadata([("general.architecture", "string", "llama")]))
    with pytest.raises(ModelFileError, match="deepseek4 and deepseek41 alone, not 'llama'"):
        check_family(llama)
