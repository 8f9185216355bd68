"""What ``ds4-quantize`` makes of trained weights and of DeepSeek V4: read by gguf-py, computed by llama.cpp.

Every recipe goes the way that a user goes: importance from a text by ``ds4 imatrix``, a folder of safetensors in, a
GGUF out. llama.cpp rounds activations before every product, so end to end it can only be near; our own pass with its
roundings (``llama_numerics``) is nearer by far, which roundings that nobody makes could not bring about.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ds4ref.archs.deepseek4.chunk import Chunk
from ds4ref.archs.deepseek4.forward import Model
from ds4ref.cli.ds4 import main as ds4
from ds4ref.cli.quantize import main as quantize
from ds4ref.engine import Engine
from ds4ref.kernels.formats import FORMATS
from ds4ref.nano.prose import prose
from ds4ref.session.session import Session
from ds4ref.test_vectors.trace.forcing import Forcing, run
from ds4ref.test_vectors.trace.names import load
from ds4ref.test_vectors.trace.ops import Key
from ds4ref.test_vectors.trace.theirs import Theirs
from ds4ref.variants import RoundingSet
from ds4ref.weights import open_source
from tests.test_vectors.tracing import as_dump

from . import trained
from .compare import difference
from .llama_numerics import NUMERICS, ops
from .test_llama import forced_errors

pytestmark = pytest.mark.peers

RECIPES = ("q8", "q4", "q2")


def make(folder: Path, published: Path, text: str, recipe: str, tokens: str = "600") -> Path:
    """A GGUF of ``published`` with importance that ``text`` taught, both by the commands."""
    table, out = folder / "importance.gguf", folder / f"{recipe}.gguf"
    if not table.exists():
        (folder / "text.txt").write_text(text)
        command = ["imatrix", str(folder / "text.txt"), "-m", str(published), "-o", str(table), "--max-tokens", tokens]
        assert ds4([*command, "--numerics", "exact", "--ctx", "256"]) == 0
    command = [str(published), "-o", str(out), "--recipe", recipe, "--imatrix", str(table), "--imatrix-strict"]
    assert quantize(command) == 0
    return out


def same_in_gguf_py(path: Path) -> dict[str, int]:
    """gguf-py reads every tensor and decodes it to the values that we do; how many there are of each format."""
    gguf = pytest.importorskip("gguf")
    found: dict[str, int] = {}
    with open_source(path) as source:
        theirs = gguf.GGUFReader(path).tensors
        assert {t.name for t in theirs} == source.tensors.keys()
        for tensor in theirs:
            info = source.tensors[tensor.name]
            found[info.fmt.name] = found.get(info.fmt.name, 0) + 1
            assert tensor.tensor_type.name == info.fmt.name
            if info.fmt.name == "I32":
                continue
            rows = source.raw(tensor.name).reshape(-1, info.fmt.row_bytes(info.dims[0]))
            decode = FORMATS[info.fmt.name].dequantize
            np.testing.assert_array_equal(
                gguf.quants.dequantize(tensor.data, tensor.tensor_type).reshape(-1), decode(rows).reshape(-1)
            )
    return found


def emulated(engine: Engine, ids: list[int]) -> np.ndarray:
    """Our pass with llama.cpp's roundings before every matrix."""
    model = type(engine.model)(engine.shape, engine.model.weights, ops(engine.model.ops), NUMERICS)
    return Session(model, len(ids) + 1).extend(ids, chunk=len(ids))


# --- a trained Llama


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The trained model, quantized by every recipe, and its logits on prose it has not seen."""
    folder = tmp_path_factory.mktemp("trained")
    published = trained.trained(folder / "llama")
    with Engine.open(published, numerics="exact") as engine:
        ids = engine.tokenizer.encode(trained.HELD_OUT)[:160]
        logits = engine.logits(ids)
    found: dict[str, Any] = {"published": published, "ids": ids, "logits": logits, "folder": folder}
    return found | {recipe: make(folder, published, trained.TEXT, recipe, "4000") for recipe in RECIPES}


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_trained_llama_in_llama_cpp(story: dict[str, Any], llama: Any, recipe: str) -> None:
    formats = same_in_gguf_py(story[recipe])
    assert {"q8": "Q8_0", "q4": "Q4_K", "q2": "Q2_K"}[recipe] in formats
    ids = story["ids"]
    with Engine.open(story[recipe], backend="reference", numerics="exact") as engine:
        ours, near = engine.logits(ids), emulated(engine, ids)
        with llama.Llama(story[recipe], f32_cache=True, flash=False) as other:
            theirs = other.logits(ids)
    far, close = difference(ours, theirs), difference(near, theirs)
    print(f"{recipe}: exact against llama.cpp {far}; with its roundings {close}; spread {theirs.std():.3g}")
    assert far.kl < 2e-3 and far.rms < 0.03 * theirs.std()
    assert close.rms < 0.3 * far.rms
    cpu = Engine.open(story[recipe], numerics="exact")
    assert difference(cpu.logits(ids), ours).max < 1e-3
    cpu.close()


def test_the_same_tokens_in_llama_cpp(story: dict[str, Any]) -> None:
    """Vocabulary, the pattern that cuts text, merges and ends travel with the weights."""
    llama_cpp = pytest.importorskip("llama_cpp")
    model = llama_cpp.Llama(str(story["q8"]), vocab_only=True, verbose=False)
    with Engine.open(story["published"]) as before, Engine.open(story["q8"]) as after:
        for text in (trained.HELD_OUT, "In 1742, 31415 crowns!\n\n\tnaïve café — 你好 🙂 x==y"):
            wanted = before.tokenizer.encode(text)
            assert after.tokenizer.encode(text) == wanted
            assert model.tokenize(text.encode(), add_bos=False, special=False) == wanted
        talk = [{"role": "user", "content": "a" + trained.END}]
        assert after.tokenizer.chat(talk) == before.tokenizer.chat(talk)
        assert after.tokenizer.ends == before.tokenizer.ends == {model.token_eos()}
    model.close()


def test_importance_helps_a_trained_model(story: dict[str, Any]) -> None:
    """On prose that neither training nor importance has seen: fewer bits cost more, importance makes them cost less."""
    kl = {}
    for recipe in RECIPES:
        plain = story["folder"] / f"{recipe}-plain.gguf"
        assert quantize([str(story["published"]), "-o", str(plain), "--recipe", recipe]) == 0
        for name, path in ((recipe, story[recipe]), (f"{recipe} plain", plain)):
            with Engine.open(path, numerics="exact") as engine:
                kl[name] = difference(engine.logits(story["ids"]), story["logits"]).kl
    print({name: f"{value:.3g}" for name, value in kl.items()})
    assert kl["q8"] < 0.2 * kl["q4"] < 0.2 * 0.3 * kl["q2"]
    assert kl["q4"] < kl["q4 plain"] and kl["q2"] < 0.9 * kl["q2 plain"]


# --- DeepSeek V4


@pytest.fixture(scope="module")
def deepseek(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The embedded model as DeepSeek publishes it, quantized by every recipe."""
    folder = tmp_path_factory.mktemp("v4")
    assert ds4(["nano", "checkpoint", str(folder / "published")]) == 0
    made = {recipe: make(folder, folder / "published", prose(6000, 5), recipe) for recipe in RECIPES}
    return {"published": folder / "published", **made}


def named(name: str) -> bool:
    """Tensors of llama.cpp's graph that have a name of their own."""
    return "(" not in name and not name.startswith(("node", "leaf", "cache"))


def apart_by(logits: np.ndarray, theirs: np.ndarray) -> float:
    """Rms of the difference over the spread, median over positions."""
    return float(np.median(np.sqrt(np.mean((logits - theirs) ** 2, axis=1)) / theirs.std(axis=1)))


def _turned(chunk: Chunk) -> None:
    chunk.index_rounding = chunk.ops.hadamard  # type: ignore[method-assign]


TURNED = RoundingSet("turned", "indexer vectors turned by a Hadamard matrix, which changes no score", NUMERICS, _turned)


def by_op(model: Model, ids: list[int], taken: dict[str, np.ndarray]) -> dict[Key, float]:
    """Every op of the pass on llama.cpp's own inputs, values put in at every point that its graph names: the worst
    row's rms error over that row's rms. Choices of experts and rows: how far the exchanged ones' scores were apart."""
    dump = as_dump(taken)
    theirs = Theirs(dump, load("llama.cpp").find(dump.tensors, model.shape.n_layers), model.shape, len(ids))
    reading = run(model, ids, Forcing(theirs, TURNED))
    assert not theirs.unfit, theirs.unfit
    return {key: float(np.max(apart / reading.size[key])) for key, apart in reading.apart.items()}


def agree(path: Path, ids: list[int], llama: Any, bar: float, attention: float, backend: str = "reference") -> None:
    """gguf-py and llama.cpp read it, and logits are near.

    What is left of the distance with llama.cpp's roundings: every op on its own inputs is the same to float noise, and
    so is each half layer on its own streams, in the median (``attention``: what that half may be off by); end to end,
    flips hide that. But for the inputs of the experts' down projections: llama.cpp rounds them before they get the
    routing weight, and we after. In Q8_0 the scale is then another f16, in Q2_K and Q4_K a code flips now and then."""
    with open_source(path) as source:
        blocks = source.tensors["blk.3.ffn_down_exps.weight"].fmt.name != "Q8_0"
    same_in_gguf_py(path)
    with llama.Llama(path, f32_cache=True, flash=False) as other:
        theirs, taken = other.record(ids, named)
        alone = other.logits(ids, one_by_one=True)
    with Engine.open(path, backend=backend, numerics="exact", strict=False) as engine:
        streams = [taken["hc_init"]]
        for layer in range(engine.shape.n_layers):
            streams += [taken[f"hc_attn_post-{layer}"], taken[f"l_last-{layer}"]]
        graph = {"ids": ids, "streams": [stream.reshape(len(ids), -1) for stream in streams]}
        theirs_rounded = Model(engine.shape, engine.model.weights, ops(engine.model.ops), NUMERICS)
        rounded, _ = forced_errors(graph, theirs_rounded)
        plain, _ = forced_errors(graph, engine.model)
        layers = engine.shape.n_layers
        near = emulated(engine, ids)
        apart, without = by_op(theirs_rounded, ids, taken), by_op(engine.model, ids, taken)
    with Engine.open(path, numerics="exact", strict=False) as engine:
        ours = engine.session(len(ids) + 1).extend(ids)
    far, close, own = apart_by(ours, theirs), apart_by(near, theirs), apart_by(alone, theirs)
    halves = {name: (np.median(rounded[name], axis=1), np.median(plain[name], axis=1)) for name in plain}
    print(f"{path.name}: median distance to llama.cpp in spreads {far:.3g}, with its roundings {close:.3g}, of its own "
          f"pass one by one {own:.3g}; half layers, "
          + ", ".join(f"{name} {a.max():.2g} (without {b.min():.2g} to {b.max():.2g})"
                      for name, (a, b) in halves.items()))  # fmt: skip
    worst = sorted(apart, key=lambda key: -apart[key])[:6]
    print(f"{len(apart)} ops on its inputs, the worst: "
          + ", ".join(f"{name} of layer {layer} {apart[name, layer]:.2g} (without {without[name, layer]:.2g})"
                      for name, layer in worst))  # fmt: skip
    assert far < bar and close < 3 * own
    exact = {"hc_attn_post": attention, "hc_ffn_post": 2e-5 if blocks else 2e-3}
    assert all(a.max() < exact[name] and a.max() < 0.05 * b.min() for name, (a, b) in halves.items())
    assert len(apart) > 35 * layers
    assert all(error < (2e-3 if name == "ffn_moe_out" else 5e-5) for (name, _), error in apart.items())
    assert np.median(list(apart.values())) < 1e-6
    products = [without[name, layer] for name, layer in without if name in ("q_lora", "KVnorm", "attn_low", "attn_out")]
    assert min(products) > 1e-3


@pytest.mark.parametrize("recipe", RECIPES)
def test_the_embedded_model_published_and_quantized(deepseek: dict[str, Any], llama: Any, recipe: str) -> None:
    with Engine.open(deepseek[recipe]) as engine:
        ids = engine.tokenizer.encode(prose(3000, 4))[:150]
    agree(deepseek[recipe], ids, llama, 0.1, 2e-5)
