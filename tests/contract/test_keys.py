"""What is kept is used again for the same, and for nothing else: each input of a result is varied alone.

A row says whether what was kept for the inputs ``a`` is used for the inputs ``b``. A key that leaves out an input, or a
resumed run that does not compare one, gives wrong results that look right.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx2
import pytest

from ds4ref.conformance.talk import Talk
from ds4ref.errors import DataError
from ds4ref.nano import cache, trained
from ds4ref.speed_bench.runner import require_same_setup

Inputs = Mapping[str, Any]


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


def rows_of_a_benchmark(a: Inputs, b: Inputs, patch: Any, tmp_path: Path) -> bool:
    first, second = ({"model": {"sha256": i["weights"]}, "machine": {"cpu": i["cpu"]}, **i} for i in (a, b))
    try:
        require_same_setup(SimpleNamespace(facts=first, rows=[{}]), second, "")  # type: ignore[arg-type]
    except DataError:
        return False
    return True


ROWS: list[tuple[Callable[..., bool], Inputs, Inputs]] = [
    (answers_of_a_tested_server, {"path": "/v1/a", "body": {"n": 1}}, {"path": "/v1/b", "body": {"n": 2}}),
    (the_embedded_model, {"config": "{}", "weights": b"1", "making": 1, "recipe": "f16"},
     {"config": "{ }", "weights": b"2", "making": 2, "recipe": "q4"}),
    (slices_of_models, {"layers": 4, "experts": 16, "vocab": 4096, "recipe": "q4", "model": "flash"},
     {"layers": 5, "experts": 17, "vocab": 4097, "recipe": "q2", "model": "pro"}),
    (rows_of_a_benchmark, dict.fromkeys(names := ("weights", "prompt_sha256", "cpu", "numerics", "steering", "cluster",
                                                  "streams", "threads"), "a"), dict.fromkeys(names, "b")),
]  # fmt: skip


@pytest.mark.parametrize(("used_again", "base", "others"), ROWS, ids=lambda row: getattr(row, "__name__", ""))
def test_only_the_same_is_used_again(
    used_again: Callable[..., bool], base: Inputs, others: Inputs, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert base.keys() == others.keys() and used_again(base, dict(base), monkeypatch, tmp_path)
    again = [name for name, value in others.items() if used_again(base, {**base, name: value}, monkeypatch, tmp_path)]
    assert not again, f"whatever these are, what was kept is used: {again}"
