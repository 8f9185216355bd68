"""llama2.c's checkpoints: read, and told on, as the program in plain NumPy tells them, token for token."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ds4ref.cli import ds4
from ds4ref.engine import Engine
from ds4ref.errors import Ds4Error
from ds4ref.generate import Generation, Timing, prefill
from ds4ref.sampling.llama2c import Llama2cSampler
from ds4ref.text.pieces import PieceTokenizer, read_tokenizer_bin
from ds4ref.weights import open_source

from . import llama2c
from .llama2c import Config

PROMPT = "Once is the stone"
CONFIGS = {
    "gqa": Config(),
    "mha": Config(heads=4, shared=4, tied=False),
    "mqa": Config(heads=3, shared=1, layers=3),
}
LARGER = Config(dim=128, hidden=256, layers=3, heads=8, shared=4, vocab=320, context=120)
LAYOUTS = ("legacy", "version 1", "version 2")


def checkpoint(folder: Path, c: Config, layout: str, seed: int = 0, group: int = 16):
    """A file, the weights that it holds as its program has them, its vocabulary."""
    w, tokens = llama2c.draw(c, seed), llama2c.vocabulary(c)
    if layout == "version 2":
        data, _, w = llama2c.version_2(c, w, group)
    else:
        data = (llama2c.legacy if layout == "legacy" else llama2c.version_1)(c, w)
    return llama2c.write(folder, data, tokens), w, tokens


def told(engine: Engine, prompt: str, steps: int, temperature: float, top_p: float, seed: int):
    """Tokens and text as the command makes them."""
    ids = engine.prompt(prompt)
    session, timing = engine.session(steps + 1), Timing()
    prefill(session, ids, timing)
    sampler = engine.sampler(temperature, top_p=top_p, seed=seed)
    generation = Generation(session, engine.tokenizer, sampler, limit=steps + 1 - len(ids), last=False)
    text = "".join(piece.text for piece in generation)
    return generation.tokens, text


@pytest.mark.parametrize("layout", LAYOUTS[:2])
@pytest.mark.parametrize("name", CONFIGS)
def test_the_same_text_token_for_token(name: str, layout: str, tmp_path: Path) -> None:
    c = CONFIGS[name]
    path, w, tokens = checkpoint(tmp_path, c, layout)
    with Engine.open(path) as engine:
        for temperature, top_p, seed in ((0, 0.9, 1), (1.0, 0.9, 7), (0.8, 0.5, 11), (1.3, 1.0, 5)):
            sampler = llama2c.Sampler(temperature, top_p, seed)
            wanted, text = llama2c.generate(c, w, tokens, sampler, PROMPT, 60)
            assert len(wanted) > 5, "a text that ends at once shows nothing"
            assert told(engine, PROMPT, 60, temperature, top_p, seed) == (wanted, text.decode("utf-8", "replace"))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_logits(layout: str, tmp_path: Path) -> None:
    c = CONFIGS["gqa"]
    path, w, tokens = checkpoint(tmp_path, c, layout, seed=3)
    ids = llama2c.encode(tokens, PROMPT)
    run = llama2c.Run(c, w)
    wanted = np.array([run.forward(token, pos) for pos, token in enumerate(ids)])
    for numerics in ("qat",) if layout == "version 2" else ("exact", "qat"):
        with Engine.open(path, numerics=numerics) as engine:
            got = engine.session(50).extend(ids)
        assert np.abs(got - wanted).max() < 1e-4 * wanted.std()


@pytest.mark.parametrize("group", [32, 64])
def test_groups_of_blocks_with_scales_of_16_bits_stay_quantized(tmp_path: Path, group: int) -> None:
    """Where nothing is lost; any other scale makes the tensor float32. Blocks of a group all have its scale."""
    c = Config(dim=64, hidden=192, heads=4, shared=2)
    w, tokens = llama2c.draw(c), llama2c.vocabulary(c)
    data, *_ = llama2c.version_2(c, w, group)
    path = llama2c.write(tmp_path, data, tokens)
    with open_source(path) as source:
        assert {info.fmt.name for info in source.tensors.values()} == {"F32"}
        where = source._stored["blk.1.ffn_up.weight"]
    count = int(np.prod(where.dims))
    exact = bytearray(data)
    scales = np.frombuffer(data, "<f4", count // group, where.scales).astype(np.float16).astype("<f4")
    exact[where.scales : where.scales + scales.nbytes] = scales.tobytes()
    path.write_bytes(exact)
    with open_source(path) as source:
        kinds = {name: info.fmt.name for name, info in source.tensors.items()}
        assert [name for name, kind in kinds.items() if kind == "Q8_0"] == ["blk.1.ffn_up.weight"]
        info = source.tensors["blk.1.ffn_up.weight"]
        codes = np.frombuffer(data, np.int8, count, where.offset).reshape(-1, group)
        values = info.fmt.dequantize(source.raw(info.name))
        assert np.array_equal(values.reshape(-1, group), codes * scales[:, None])
        assert source.made_bytes == sum(i.nbytes for n, i in source.tensors.items() if "norm" not in n)


# ---- the command


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    c = CONFIGS["gqa"]
    path, w, tokens = checkpoint(tmp_path, c, "legacy")
    for flags, sampler in (
        (["--temp", "0"], llama2c.Sampler(0, 0.9, 1)),
        (["--temp", "1", "--top-p", "0.9", "--seed", "42"], llama2c.Sampler(1, 0.9, 42)),
    ):
        wanted, text = llama2c.generate(c, w, tokens, sampler, PROMPT, 95)
        many = min(30, len(wanted))
        code = ds4.main(["-m", str(path), "-p", PROMPT, "-c", "96", "-n", str(many), *flags])
        out, _ = capsys.readouterr()
        before = 1
        data = b""
        for token in wanted[:many]:
            data, before = data + llama2c.decode(tokens, before + 1, token), token
        assert code == 0 and out.removesuffix("\n") == data.decode("utf-8", "replace") and text


# ---- the vocabulary

TOKENS = llama2c.vocabulary(Config(vocab=360))


def pieces(folder: Path) -> PieceTokenizer:
    (folder / "t.bin").write_bytes(llama2c.tokenizer_bin(TOKENS))
    return read_tokenizer_bin(folder / "t.bin", len(TOKENS))


@given(text=st.text(alphabet="etaoinshrdlu OcT.é€\n<0x41>", max_size=60))
def test_encoding_is_that_of_run_c(text: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    tokenizer = pieces(tmp_path_factory.mktemp("v"))
    wanted = llama2c.encode(TOKENS, text)
    assert [1, *tokenizer.encode(text)] == wanted
    assert tokenizer.decode(wanted) == text.encode()


def test_the_sampler_at_the_edges() -> None:
    ties = np.random.default_rng(4).integers(0, 4, (300, 9)).astype(np.float32)
    for top_p in (0.3, 0.7, 0.9, 1.0):
        ours, theirs = Llama2cSampler(1.0, top_p=top_p, seed=7), llama2c.Sampler(1, top_p, 7)
        assert [ours.pick(row) for row in ties] == [theirs.pick(row) for row in ties], "of equals the first counts"
    assert Llama2cSampler(1.0, seed=1).pick(np.array([2.0], np.float32)) == 0
    assert Llama2cSampler(0.0).pick(np.array([1, 3, 3], np.float32)) == 1
    assert Llama2cSampler(1e-30, seed=1).pick(np.array([1, 3, 2], np.float32)) == 1
    assert Llama2cSampler(1.0, seed=1).pick(np.array([1, np.nan, 2], np.float32)) == 2
    assert Llama2cSampler(1.0, seed=1).pick(np.array([1, np.inf, 2], np.float32)) == 1


# ---- files that are something else


def refused(path: Path) -> str:
    """The one line that opening ends in."""
    with pytest.raises(Ds4Error) as found, Engine.open(path) as engine:
        engine.prompt("a stone")
    assert "\n" not in str(found.value)
    return str(found.value)


def test_what_is_not_finite(tmp_path: Path) -> None:
    for layout in LAYOUTS:
        path, *_ = checkpoint(tmp_path, CONFIGS["gqa"], layout)
        with open_source(path) as source:
            where = source._stored["blk.0.attn_q.weight"]
        data = bytearray(path.read_bytes())
        struct.pack_into("<f", data, where.scales or where.offset + 40, float("nan"))
        path.write_bytes(data)
        assert "attn_q.weight' holds a NaN" in refused(path)
