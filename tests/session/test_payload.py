"""The saved form, byte by byte, and streams that cannot seek."""

from __future__ import annotations

import io

import numpy as np
import pytest

from ds4ref.archs.deepseek4 import payload
from ds4ref.archs.deepseek4.cache import EMPTY_SCORE
from ds4ref.archs.deepseek4.hooks import Recorder
from ds4ref.archs.deepseek4.shape import CSA, HCA
from ds4ref.engine import Engine
from ds4ref.errors import PayloadError, PayloadMismatch
from ds4ref.session.session import Session

CTX = 400


@pytest.fixture(scope="module")
def engine(nano_path: str) -> Engine:
    return Engine.open(nano_path, numerics="ds4")


@pytest.fixture(scope="module")
def ids(engine: Engine) -> list[int]:
    return [int(t) for t in np.random.default_rng(4).integers(0, engine.shape.vocab, 300)]


def saved(session: Session) -> bytes:
    stream = io.BytesIO()
    session.save(stream)
    return stream.getvalue()


class Pipe(io.RawIOBase):
    """Neither knows its length nor gives all that is asked for at once."""

    def __init__(self, data: bytes):
        self.data = data

    def readable(self) -> bool:
        return True

    def readinto(self, buffer) -> int:
        piece = self.data[: min(len(buffer), 1000)]
        self.data = self.data[len(piece) :]
        buffer[: len(piece)] = piece
        return len(piece)


@pytest.mark.parametrize(("ctx", "at"), [(CTX, 150), (100, 7), (CTX, 4), (3000, 257)])
def test_every_byte_is_what_the_layers_computed(engine: Engine, ids: list[int], ctx: int, at: int) -> None:
    shape, session = engine.shape, engine.session(ctx)
    names = Recorder("KVcur", "KVcompress", "indexer_KVcompress")
    tap = Recorder("attn_comp_kv_raw", "attn_comp_score_raw", "indexer_comp_kv_raw", "indexer_comp_score_raw")

    class Both:
        def begin(self, chunk) -> None:
            names.begin(chunk)
            tap.begin(chunk)

        def tap(self, name, layer, value, chunk):
            return tap.tap(name, layer, names.tap(name, layer, value, chunk), chunk)

    session.hooks = Both()
    session.sync(ids[:at], chunk=64)
    data = saved(session)
    words = np.frombuffer(data, "<u4")
    window, live = min(shape.window, ctx), min(shape.window, at)
    assert words[:13].tolist() == [
        0x34565344, 1, ctx, min(ctx, 2048), window, window, ctx // 4 + 2, at,
        shape.n_layers, shape.head_dim, shape.index_dim, shape.vocab, live,
    ]  # fmt: skip
    assert words[13 : 13 + at].tolist() == ids[:at]
    floats, here = words.view("<f4"), 13 + at

    def take(*size: int) -> np.ndarray:
        nonlocal here
        part = floats[here : here + int(np.prod(size))].reshape(size)
        here += part.size
        return part

    np.testing.assert_array_equal(take(shape.vocab), session.logits)
    counts = take(2, shape.n_layers).view("<u4")
    assert counts[0].tolist() == [at // r if r else 0 for r in shape.ratios]
    assert counts[1].tolist() == [at // r if r == CSA else 0 for r in shape.ratios]
    for layer, ratio in enumerate(shape.ratios):
        raw = take(live, shape.head_dim)
        np.testing.assert_array_equal(raw, names["KVcur", layer][at - live : at])
        np.testing.assert_array_equal(raw, raw.astype(np.float16), err_msg="rounded as it was put in")
        kinds = [("attn", "KVcompress", shape.head_dim), ("indexer", "indexer_KVcompress", shape.index_dim)]
        for kind, name, width in kinds[: {CSA: 2, HCA: 1}.get(ratio, 0)]:
            rows = take(at // ratio, width)
            if len(rows):
                np.testing.assert_array_equal(rows, names[name, layer])
                np.testing.assert_array_equal(rows, rows.astype(np.float16))
            slots, first = (8, 4) if ratio == CSA else (HCA, 0)
            start = at // ratio * ratio
            before = list(range(start - 4, start)) if ratio == CSA and start else []
            for what, empty in (("kv", 0), ("score", EMPTY_SCORE)):
                values = tap[f"{kind}_comp_{what}_raw", layer]
                wanted = np.full((slots, values.shape[1]), empty, np.float32)
                wanted[: len(before)] = values[before]
                wanted[first : first + at - start] = values[start:at]
                np.testing.assert_array_equal(take(slots, values.shape[1]), wanted)
    assert here == len(floats) == len(data) // 4 == session.payload_bytes() // 4


def test_streams_that_cannot_seek(engine: Engine, ids: list[int]) -> None:
    session, other = engine.session(CTX), engine.session(CTX)
    session.sync(ids[:140])
    data = saved(session)
    other.load(Pipe(data))
    for token in ids[140:150]:
        np.testing.assert_array_equal(other.eval(token), session.eval(token))
    before = other.logits.copy()
    for cut, where in ((40, "header"), (60, "tokens"), (52 + 560 + 9, "logits"), (len(data) - 1, "scores of layer")):
        with pytest.raises(PayloadError, match=f"ends inside its .*{where}"):
            other.load(Pipe(data[:cut]))
    with pytest.raises(PayloadError, match="bytes after its end"):
        other.load(Pipe(data + b"x"))
    assert other.tokens == ids[:150]
    np.testing.assert_array_equal(other.logits, before)


def test_empty_slots_of_a_writer_on_a_gpu(engine: Engine, ids: list[int]) -> None:
    """It marks them by -inf, as a maximum begins; they count as ours do, and so does nothing else that is infinite."""
    session, other = engine.session(CTX), engine.session(CTX)
    session.sync(ids[:3])
    data = np.frombuffer(saved(session), "<f4").copy()
    empty = np.flatnonzero(data == EMPTY_SCORE)
    assert len(empty) > 100
    data[empty] = -np.inf
    other.load(io.BytesIO(data.tobytes()))
    for token in ids[3:12]:
        np.testing.assert_array_equal(other.eval(token), session.eval(token))
    data[empty[0]] = np.inf
    with pytest.raises(PayloadError, match="not finite in its .* scores of layer"):
        other.load(io.BytesIO(data.tobytes()))


def test_into_a_larger_context_but_no_smaller_one(engine: Engine, ids: list[int]) -> None:
    """A server started with more room goes on with what it saved; from 2,048 tokens on the header allows it. A session
    need not begin where its file does."""
    session, larger = engine.session(2500), engine.session(3000)
    session.sync(ids[:140])
    data = saved(session)
    file = io.BytesIO(b"before it" + data)
    file.seek(9)
    larger.load(file)
    for token in ids[140:145]:
        np.testing.assert_array_equal(larger.eval(token), session.eval(token))
    with pytest.raises(PayloadMismatch, match="a context of 2500, this one 2499"):
        engine.session(2499).load(io.BytesIO(data))


def test_from_a_session_with_room_for_more_rows(engine: Engine, ids: list[int]) -> None:
    """A writer may keep more raw rows than it saved; it has to save all that are still seen."""
    session = engine.session(CTX)
    session.sync(ids[:20])
    words = np.frombuffer(saved(session), "<u4").copy()
    words[4] = 4096
    session.load(io.BytesIO(words.tobytes()))
    for rows in (19, 0):
        words[4] = rows
        with pytest.raises(PayloadError, match=f"20 raw rows of {rows}, 20 tokens make 20"):
            session.load(io.BytesIO(words.tobytes()))


@pytest.mark.parametrize("part", ["logits", "raw rows", "values", "compressor rows", "indexer rows"])
def test_no_row_may_be_infinite(engine: Engine, ids: list[int], part: str) -> None:
    """Wherever -inf is put in: only empty slots of scores take it, and logits, which may exclude tokens."""
    shape, session, other = engine.shape, engine.session(CTX), engine.session(CTX)
    session.sync(ids[:140])
    layer = shape.ratios.index(CSA)
    floats = np.frombuffer(saved(session), "<f4").copy()
    start = 13 + 140 + shape.vocab + 2 * shape.n_layers
    for each in range(layer):
        start += min(140, shape.window) * shape.head_dim
        for _, _, width, projection in payload._kinds(shape, each):
            start += 140 // shape.ratios[each] * width + 2 * shape.state_rows(each) * projection
    raw = min(140, shape.window) * shape.head_dim
    comp = 35 * shape.head_dim
    state = 8 * 2 * shape.head_dim
    place = {
        "logits": 13 + 141 - start,
        "raw rows": 0,
        "compressor rows": raw,
        "values": raw + comp,
        "indexer rows": raw + comp + 2 * state,
    }[part]
    floats[13 + 140] = -np.inf
    floats[start + place] = np.nan if part == "logits" else -np.inf
    with pytest.raises(
        PayloadError, match=f"not finite in its .*{part}{'' if part == 'logits' else f' of layer {layer}'}"
    ):
        other.load(io.BytesIO(floats.tobytes()))
    floats[start + place] = 0
    other.load(io.BytesIO(floats.tobytes()))
    assert other.logits[0] == -np.inf
