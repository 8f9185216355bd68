"""What is kept is used again for the same, and for nothing else: each input of a result is varied alone.

A row says whether what was kept for the inputs ``a`` is used for the inputs ``b``. A key that leaves out an input, or a
resumed run that does not compare one, gives wrong results that look right.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx2
import msgspec
import pytest

from ds4ref.conformance.talk import Talk
from ds4ref.errors import DataError
from ds4ref.eval.packs import Question
from ds4ref.eval.plan import Settings
from ds4ref.nano import cache, trained
from ds4ref.runs import shards
from ds4ref.runs.provenance import now
from ds4ref.runs.store import Run
from ds4ref.speed_bench import peaks
from ds4ref.speed_bench.runner import require_same_setup
from ds4ref.test_vectors.capture import _asked
from ds4ref.test_vectors.doctor.run import form_of
from ds4ref.test_vectors.schema import CaseEntry, Manifest

Inputs = Mapping[str, Any]
QUESTION = Question("q-1", "maths", "algebra/x", "hard", "choice", "Which?", ("one", "two", "three"), "B")
SETTINGS = dataclasses.asdict(Settings())


def answers_of_a_tested_server(a: Inputs, b: Inputs, patch: Any, tmp_path: Path) -> bool:
    asked = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        asked.append(request)
        return httpx2.Response(200)

    with httpx2.Client(transport=httpx2.MockTransport(answer)) as client:
        talk = Talk("http://127.0.0.1:1", client=client)
        talk.ask(**a)
        talk.ask(**b)
    return len(asked) == 1


def the_embedded_model(a: Inputs, b: Inputs, patch: Any, tmp_path: Path) -> bool:
    """Its weights may change where they are, as in training."""
    patch.setattr(trained, "kept", lambda path, *_: str(path))
    patch.setenv(trained.FOLDER_KEY, str(tmp_path))
    paths = set()
    for one in (a, b):
        (tmp_path / "config.json").write_text(one["config"])
        (tmp_path / "model.safetensors").write_bytes(one["weights"])
        patch.setattr(trained, "MAKING", one["making"])
        paths.add(trained.embedded_path(one["recipe"]))
    return len(paths) == 1


def slices_of_models(a: Inputs, b: Inputs, patch: Any, tmp_path: Path) -> bool:
    patch.setattr(cache, "kept", lambda path, *_: str(path))
    return cache.slice_path(**a) == cache.slice_path(**b)


def peaks_of_the_machine(a: Inputs, b: Inputs, patch: Any, tmp_path: Path) -> bool:
    patch.setattr(peaks, "peaks_key", lambda threads: b)
    patch.setattr("ds4ref.peaks.measure_peaks", lambda threads: SimpleNamespace())
    patch.setattr(peaks, "asdict", vars)
    kept = Run(1, "", "peaks", now(), "", "complete", dict(a))
    store: Any = SimpleNamespace(runs=lambda kind: [kept], rows=lambda run: [{}], add=lambda *_, **__: 2)
    return peaks.machine_peaks(store, b["threads"])["run"] == 1


def rows_of_a_benchmark(a: Inputs, b: Inputs, patch: Any, tmp_path: Path) -> bool:
    first, second = ({"model": {"sha256": i["weights"]}, "machine": {"cpu": i["cpu"]}, **i} for i in (a, b))
    try:
        require_same_setup(SimpleNamespace(facts=first, rows=[{}]), second, "")  # type: ignore[arg-type]
    except DataError:
        return False
    return True


def a_partial_capture(a: Inputs, b: Inputs, patch: Any, tmp_path: Path) -> bool:
    def made(i: dict[str, Any]) -> Manifest:
        case = CaseEntry(i.pop("id"), "", i.pop("prompt"), i.pop("ctx"))
        return Manifest("", "", created="", complete=False, cases=[case], **i)

    return _asked(made(dict(a))) == _asked(made(dict(b)))


def an_unfinished_examination(a: Inputs, b: Inputs, patch: Any, tmp_path: Path) -> bool:
    def form(i: Inputs) -> Any:
        engine = SimpleNamespace(shape=SimpleNamespace(name=i["model"]), source=SimpleNamespace(size=i["size"]))
        patch.setattr("ds4ref.test_vectors.doctor.run.__version__", i["version"])
        case: Any = SimpleNamespace(engine=engine, spec=i["spec"], quick=i["quick"], long=i["long"])
        return form_of(case, i["only"])

    return form(a) == form(b)


def a_shard(a: Inputs, b: Inputs, patch: Any, tmp_path: Path) -> bool:
    return not shards._differing(a, b)


def a_sample(a: Inputs, b: Inputs, patch: Any, tmp_path: Path) -> bool:
    one, other = (Settings(**{k: v for k, v in i.items() if k != "question"}).digest(i["question"]) for i in (a, b))
    return one == other


ROWS: list[tuple[Callable[..., bool], Inputs, Inputs]] = [
    (answers_of_a_tested_server, {"path": "/v1/a", "body": {"n": 1}}, {"path": "/v1/b", "body": {"n": 2}}),
    (the_embedded_model, {"config": "{}", "weights": b"1", "making": 1, "recipe": "f16"},
     {"config": "{ }", "weights": b"2", "making": 2, "recipe": "q4"}),
    (slices_of_models, {"layers": 4, "experts": 16, "vocab": 4096, "recipe": "q4", "model": "flash"},
     {"layers": 5, "experts": 17, "vocab": 4097, "recipe": "q2", "model": "pro"}),
    (peaks_of_the_machine, {"host": "a", "kernels": "k", "threads": 1}, {"host": "b", "kernels": "l", "threads": 2}),
    (rows_of_a_benchmark, dict.fromkeys(names := ("weights", "prompt_sha256", "cpu", "numerics", "steering", "cluster",
                                                  "streams", "threads"), "a"), dict.fromkeys(names, "b")),
    (a_partial_capture,
     {"max_tokens": 4, "top_logprobs": 20, "repetitions": 3, "system": "", "source": {"digest": "a"}, "id": "a",
      "prompt": "a", "ctx": 100},
     {"max_tokens": 5, "top_logprobs": 19, "repetitions": 5, "system": "S", "source": {"digest": "b"}, "id": "b",
      "prompt": "b", "ctx": 101}),
    (an_unfinished_examination,
     {"spec": "a", "model": "m", "size": 1, "quick": False, "long": False, "only": (), "version": "1"},
     {"spec": "b", "model": "n", "size": 2, "quick": True, "long": True, "only": ("api",), "version": "2"}),
    (a_shard, {"tool": "eval", "of": 2, "shard": 1, "plan": {"n": 1}, "units": ["a"]},
     {"tool": "bench", "of": 3, "shard": 2, "plan": {"n": 2}, "units": ["b"]}),
    (a_sample, {**SETTINGS, "question": QUESTION},
     {"think": "none", "tokens": 16001, "soft_limit": 1025, "hard_limit": 100, "temperature": 0.5, "top_p": 0.5,
      "min_p": 0.1, "seed": 1, "system": "other", "question": msgspec.structs.replace(QUESTION, answer="A")}),
]  # fmt: skip


@pytest.mark.parametrize(("used_again", "base", "others"), ROWS, ids=lambda row: getattr(row, "__name__", ""))
def test_only_the_same_is_used_again(
    used_again: Callable[..., bool], base: Inputs, others: Inputs, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert base.keys() == others.keys() and used_again(base, dict(base), monkeypatch, tmp_path)
    again = [name for name, value in others.items() if used_again(base, {**base, name: value}, monkeypatch, tmp_path)]
    assert not again, f"whatever these are, what was kept is used: {again}"
