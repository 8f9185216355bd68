"""The embedded model on compiled CUDA kernels beside the CPU: the part "models" of ``gpu-check``, with its bars."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import gpu_models
from benchmarks.gpu_check import Check

from .hosted import LAUNCHED, available, hosted

pytestmark = [pytest.mark.cuda, pytest.mark.skipif(available() is not None, reason=str(available()))]


@pytest.mark.parametrize("mode", gpu_models.MODES)
def test_a_prompt_and_recorded_tokens_are_as_near_as_orders_of_adding_allow(
    mode: str, nano_path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_models, "MODES", (mode,))
    check = Check(tmp_path / "check.json", simulated=False, facts={})
    with hosted():
        LAUNCHED.clear()
        gpu_models.beside_the_cpu(check, "embedded model", nano_path, gpu_models.Length(20, 3))
        assert LAUNCHED, "no kernel ran"
    judged = [row for _, row in check.rows if row.bar is not None]
    assert judged and all(row.value is not None and row.value <= row.bar for row in judged), judged
