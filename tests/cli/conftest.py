"""Running ``ds4`` in this process on the fake engine."""

from __future__ import annotations

import io
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from ds4ref.cli.ds4 import main
from tests.cli.fake import FakeEngine


@dataclass
class Result:
    code: int
    out: str
    err: str


@dataclass
class Ds4:
    """Call it with arguments; ``engine`` is the fake of the last call, ``answer`` what the model will say.

    hooks   attributes of every session
    """

    capsys: pytest.CaptureFixture[str]
    monkeypatch: pytest.MonkeyPatch
    model: Path
    answer: object = b"Hello."
    hooks: dict[str, object] = field(default_factory=dict)
    engines: list[FakeEngine] = field(default_factory=list)

    def __call__(self, *argv: str, stdin: bytes | None = None) -> Result:
        if stdin is not None:
            self.monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8"))
        code = main(["-m", str(self.model), *argv])
        captured = self.capsys.readouterr()
        return Result(code, captured.out, captured.err)

    @property
    def engine(self) -> FakeEngine:
        return self.engines[-1]


@pytest.fixture
def ds4(capsys, monkeypatch, tmp_path) -> Ds4:
    """``ds4`` on a fake engine that opens any file."""
    from ds4ref.engine import Engine

    model = tmp_path / "fake.gguf"
    model.write_bytes(b"fake")
    fixture = Ds4(capsys, monkeypatch, model)

    def fake_open(path, **options):
        fixture.engines.append(FakeEngine(str(path), fixture.answer, **options))
        fixture.engine.hooks = fixture.hooks
        return fixture.engine

    monkeypatch.setattr(Engine, "open", fake_open)
    monkeypatch.delenv("DS4_LOCK_FILE", raising=False)
    monkeypatch.delenv("DS4_THREADS", raising=False)
    monkeypatch.delenv("DS4_DEBUG", raising=False)
    return fixture
