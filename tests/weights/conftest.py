"""Files that several modules quantize."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ds4ref.cli.quantize import main
from ds4ref.kernels.cpu.quantize import quantize
from ds4ref.weights.writer import write_gguf

from .quantized import EXPERTS, METADATA, SPECS


@pytest.fixture(scope="module")
def fragment():
    """Let ds4-quantize write files that are no whole model, as the small inputs of its tests are."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ds4ref.cli.quantize._refuse_unreadable", lambda *_: None)
        yield


@pytest.fixture(scope="module")
def unquantized(tmp_path_factory, fragment) -> Path:
    path = tmp_path_factory.mktemp("quantize") / "f.gguf"
    rng = np.random.default_rng(0)
    with write_gguf(path, METADATA, SPECS) as out:
        for spec in SPECS:
            if spec.fmt == "I64":
                out.write(spec.name, rng.integers(0, EXPERTS, spec.elements, dtype="<i8"))
                continue
            x = (rng.standard_normal((spec.elements // spec.dims[0], spec.dims[0])) * 0.05).astype(np.float32)
            out.write(spec.name, quantize(spec.fmt, x))
    return path


@pytest.fixture(scope="module")
def quantized(unquantized) -> Path:
    out = unquantized.with_name("q2.gguf")
    assert main([str(unquantized), "-o", str(out), "--recipe", "q2"]) == 0
    return out
