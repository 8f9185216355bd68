"""Every command of ds4-vectors on dense models: it works, or its error names the architectures for which it does."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ds4ref.engine import Engine
from ds4ref.test_vectors.cli import COMMANDS, main
from tests.archs import dense
from tests.marking import sampled

TOKENS = 40
FAMILIES = {**dense.FAMILIES, "gemma3": dense.GEMMA, "qwen3moe": dense.WITH_EXPERTS["qwen3moe"]}


@pytest.fixture(scope="module", params=sampled(FAMILIES, ["llama", "gemma3"]))
def files(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A model without a tokenizer, the same in Q8_0, token ids, and logits of several engines."""
    folder: Path = tmp_path_factory.mktemp(request.param)
    # the diagnostic prompts have ids up to 511
    shape = replace(dense.draw_shape(3, FAMILIES[request.param], block=32), vocab=600)
    if shape.family.name == "qwen3moe":
        shape = dense.with_experts(shape, 3, block=32)
    if shape.family.gemma:
        shape = replace(shape, window=9, windowed=(True, False, True)[: shape.n_layers], window_theta=10_000.0)
    tensors = dense.draw_tensors(shape, 3, tied=False)
    out = {"model": str(dense.write(folder / "model.gguf", shape, tensors)),
           "q8": str(dense.write(folder / "q8.gguf", shape, tensors, "Q8_0"))}  # fmt: skip
    ids = np.random.default_rng(7).integers(0, shape.vocab, TOKENS).tolist()
    out["ids"] = str(folder / "ids.json")
    Path(out["ids"]).write_text(json.dumps(ids))

    def store(name: str, logits: np.ndarray) -> None:
        out[name] = str(folder / f"{name}.npz")
        np.savez(out[name], ids=np.array(ids), logits=logits.astype(np.float32))

    with Engine.open(out["model"], numerics="exact", threads=1) as engine:
        right = np.asarray(engine.session(TOKENS + 1).extend(ids))
        late = np.asarray(engine.session(TOKENS + 2).extend([ids[0], *ids]))[1:]
    store("right", right)
    store("doubled", late)
    half = right.copy()
    half[TOKENS // 2 :] *= 1 + 0.3 * np.sin(np.arange(right.shape[1]))
    store("broken", half)
    nan = right.copy()
    nan[5, 3] = np.nan
    store("nan", nan)
    out["folder"] = str(folder)
    return out


V4_ONLY = "trace works on DeepSeek V4 and V4.1 only"
NO_TOKENIZER = "tokenizer"

TABLE: list[tuple[str, int, str]] = [
    # command line, exit code, part of what it prints
    ("diagnose -m {model} --logits {right}", 0, "verdict      exact"),
    ("diagnose -m {model} --logits {right} --top 20 --json", 0, '"verdict": "exact"'),
    ("diagnose -m {model} --logits {right} --computes f32", 0, "verdict      exact"),
    ("diagnose -m {model} --logits {right} --their-model {q8}", 0, "verdict      exact"),
    ("diagnose -m {model} --logits {doubled}", 1, "verdict      fault: first_token_doubled"),
    ("diagnose -m {model} --logits {broken}", 1, "verdict      unknown"),
    ("diagnose -m {model} --logits {nan}", 1, "verdict      broken"),
    ("diagnose -m {model} --target local:{model} --token-ids {ids}", 0, "verdict      "),
    ("doctor local:{model} --quick", 0, "Nothing wrong was found"),
    ("doctor local:{model} --only numbers,ways,load --long", 0, "Nothing wrong was found"),
    ("doctor local:{model}?numerics=ds4 -m {model} --quick", 0, "Nothing wrong was found"),
    ("trace record -m {model} --token-ids {ids} -o {folder}/r.safetensors", 1, V4_ONLY),
    ("trace blame {right} -m {model} --token-ids {ids}", 1, V4_ONLY),
    ("trace blame {right} -m {model} --names hf", 1, V4_ONLY),
    ("damage {model} {q8} --token-ids {ids}", 0, "Q8_0"),
    ("damage {model} {model} --token-ids {ids} --json", 0, "{{"),
    ("diff {right} {doubled}", 0, "first_bad               1"),
    ("diff {right} local:{model}", 0, "max"),
    ("diff local:{model} local:{q8} --token-ids {ids}", 0, "rms"),
    ("ppl --target local:{model}", 1, NO_TOKENIZER),
    ("capture {folder}/v --target local:{model}", 1, NO_TOKENIZER),
    ("check {folder} --target local:{model}", 1, ""),
    ("drafter -m {model} --mtp {model} --token-ids {ids} --rates 0.5 --drafts 9", 2, "goes with a DeepSeek V4 model"),
]


@pytest.mark.parametrize(("line", "code", "part"), TABLE, ids=lambda value: str(value)[:60])
def test_every_command(files: dict[str, str], line: str, code: int, part: str, capfd: pytest.CaptureFixture[str],
                       monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    monkeypatch.delenv("DS4_DEBUG", raising=False)
    result = main([word.format(**files) for word in line.split()])
    out, err = capfd.readouterr()
    assert "internal error" not in err and "Traceback" not in err, err
    assert result == code, out + err
    assert part.format(**files) in out + err, out + err


def test_the_table_has_every_command() -> None:
    tried: set[Any] = {line.split()[0] for line, _, _ in TABLE}
    assert set(COMMANDS) - tried == {"convert", "identify", "merge", "model"}, "these read no model, or need none"
