"""llama2.c in plain NumPy, for tests: its files written, its vocabulary, its passes, its sampler, its loop.

Written from the formats and the order of operations that its run.c, runq.c and export.py document, one token at a time,
float32 where it has float32. Nothing of the engine is used.
"""

from __future__ import annotations

import struct
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

MAGIC = 0x616B3432
ORDER = ("wq", "wk", "wv", "wo", "w1", "w2", "w3")
F32 = np.float32
SAMPLE = (
    "Once upon a time there was a stone. The stone sat on the shore, and the sea said to it: come in, stone! "
    "Once the stone is in the sea, it is not on the shore. So the stone said no, and it sat there another day."
)


@dataclass(frozen=True)
class Config:
    dim: int = 48
    hidden: int = 80
    layers: int = 2
    heads: int = 6
    shared: int = 3
    vocab: int = 320
    context: int = 96
    tied: bool = True

    @property
    def size(self) -> int:
        return self.dim // self.heads


def draw(c: Config, seed: int = 0, gain: float = 1.0) -> dict[str, np.ndarray]:
    """Random weights by llama2.c's names; stacks over layers."""
    rng = np.random.default_rng([seed, 2])
    kv = c.shared * c.size

    def normal(*shape: int) -> np.ndarray:
        return (rng.standard_normal(shape) * gain * 1.7 / np.sqrt(shape[-1])).astype(F32)

    w = {"tok": normal(c.vocab, c.dim), "wq": normal(c.layers, c.dim, c.dim), "wk": normal(c.layers, kv, c.dim)}
    w |= {"wv": normal(c.layers, kv, c.dim), "wo": normal(c.layers, c.dim, c.dim)}
    w |= {"w1": normal(c.layers, c.hidden, c.dim), "w2": normal(c.layers, c.dim, c.hidden)}
    w |= {"w3": normal(c.layers, c.hidden, c.dim)}
    for name, shape in (("att", (c.layers, c.dim)), ("ffn", (c.layers, c.dim)), ("last", (c.dim,))):
        w[name] = (1 + 0.2 * rng.standard_normal(shape)).astype(F32)
    w["tok"] *= F32(3)
    if not c.tied:
        w["out"] = normal(c.vocab, c.dim)
    return w


def legacy(c: Config, w: dict[str, np.ndarray]) -> bytes:
    """The first layout: no magic, and tables of angles before a head of its own."""
    vocab = c.vocab if c.tied else -c.vocab
    head = struct.pack("<7i", c.dim, c.hidden, c.layers, c.heads, c.shared, vocab, c.context)
    parts = [w["tok"], w["att"], *(w[n] for n in ORDER[:4]), w["ffn"], *(w[n] for n in ORDER[4:]), w["last"]]
    parts.append(np.zeros(c.context * c.size, F32))
    return head + b"".join(part.tobytes() for part in (*parts, *([] if c.tied else [w["out"]])))


def version_1(c: Config, w: dict[str, np.ndarray]) -> bytes:
    parts = [w["att"], w["ffn"], w["last"], w["tok"], *(w[n] for n in ORDER), *([] if c.tied else [w["out"]])]
    return _head(c, 1) + b"".join(part.tobytes() for part in parts)


class Int8:
    """A matrix of version 2: codes (rows, groups, group), scales (rows, groups)."""

    def __init__(self, codes: np.ndarray, scales: np.ndarray, shape: tuple[int, ...]):
        self.codes = codes.reshape(shape[0], -1, codes.shape[-1]).astype(np.int64)
        self.scales = scales.reshape(shape[0], -1)

    def __matmul__(self, x: np.ndarray) -> np.ndarray:
        """runq.c's product: the input in the same groups, each group's integers added exactly."""
        groups = x.reshape(self.codes.shape[1:])
        scales = np.abs(groups).max(axis=1) / F32(127)
        value = (groups / np.where(scales == 0, F32(1), scales)[:, None]).astype(np.float64)
        codes = np.copysign(np.floor(np.abs(value) + 0.5), value).astype(np.int64)  # C's round, on a double
        out = np.zeros(len(self.scales), F32)
        for g, scale in enumerate(scales):
            out += (self.codes[:, g] @ codes[g]).astype(F32) * self.scales[:, g] * scale
        return out


def version_2(c: Config, w: dict[str, np.ndarray], group: int = 16) -> tuple[bytes, dict[str, Any], dict[str, Any]]:
    """int8 in groups; the weights that these stand for; and the same for runq.c, matrices as ``Int8``."""
    parts = [w["att"], w["ffn"], w["last"]]
    kept: dict[str, Any] = {name: w[name] for name in ("att", "ffn", "last")}
    held: dict[str, Any] = dict(kept)
    for name in ("tok", *ORDER, *([] if c.tied else ["out"])):
        stack = w[name] if name in ORDER else w[name][None]
        made, integers = [], []
        for one in stack:
            groups = one.reshape(-1, group)
            scale = (np.abs(groups).max(axis=1) / F32(127)).astype(F32)
            codes = np.rint(groups / scale[:, None]).astype(np.int8)
            parts += [codes, scale]
            made.append((codes.astype(F32) * scale[:, None]).reshape(one.shape))
            integers.append(Int8(codes, scale, one.shape))
        kept[name] = np.array(made) if name in ORDER else made[0]
        held[name] = integers if name in ORDER else integers[0]
    held.setdefault("out", held["tok"])
    held["tok"] = kept["tok"]  # rows of the embedding are multiplied out
    return _head(c, 2, struct.pack("<i", group)) + b"".join(part.tobytes() for part in parts), kept, held


def _head(c: Config, version: int, more: bytes = b"") -> bytes:
    sizes = c.dim, c.hidden, c.layers, c.heads, c.shared, c.vocab, c.context
    return (struct.pack("<Ii7iB", MAGIC, version, *sizes, c.tied) + more).ljust(256, b"\0")


def vocabulary(c: Config) -> list[tuple[float, bytes]]:
    """Control tokens, the 256 bytes, characters, then pairs joined by how often they occur in ``SAMPLE``, in order."""
    found = [b"<unk>", b"\n<s>\n", b"\n</s>\n", *(b"<0x%02X>" % b for b in range(256))]
    chars = sorted({char.encode() for char in SAMPLE + "\u00e9"})
    pieces, text = list(chars), [char.encode() for char in SAMPLE]
    while len(found) + len(pieces) < c.vocab:
        pairs = Counter(zip(text, text[1:], strict=False))
        best, _ = max(pairs.items(), key=lambda pair: (pair[1], pair[0]))
        joined, merged = best[0] + best[1], []
        for piece in text:
            if merged and merged[-1] == best[0] and piece == best[1]:
                merged[-1] = joined
            else:
                merged.append(piece)
        text = merged
        if joined not in pieces:
            pieces.append(joined)
    found += pieces[: c.vocab - len(found)]
    last = 259 + len(chars)  # two in a row score the same, so that places decide
    return [(0.0 if i < last else float(-(i - last) // 2), piece) for i, piece in enumerate(found)]


def tokenizer_bin(tokens: list[tuple[float, bytes]]) -> bytes:
    longest = max(len(piece) for _, piece in tokens)
    entries = (struct.pack("<fi", score, len(piece)) + piece for score, piece in tokens)
    return struct.pack("<I", longest) + b"".join(entries)


def encode(tokens: list[tuple[float, bytes]], text: str) -> list[int]:
    """As run.c does it: the best pair of all, again and again."""
    first: dict[bytes, int] = {}
    for i, (_, piece) in enumerate(tokens):
        first.setdefault(piece, i)
    ids = [1]
    if text:
        ids.append(first[b" "])
    for char in text:
        data = char.encode()
        ids += [first[data]] if data in first else [b + 3 for b in data]
    while True:
        best, place, joined = -1e10, -1, -1
        for i in range(len(ids) - 1):
            found = first.get(tokens[ids[i]][1] + tokens[ids[i + 1]][1], -1)
            if found >= 0 and tokens[found][0] > best:
                best, place, joined = tokens[found][0], i, found
        if place < 0:
            return ids
        ids[place : place + 2] = [joined]


def decode(tokens: list[tuple[float, bytes]], before: int, token: int) -> bytes:
    piece = tokens[token][1]
    if before == 1 and piece.startswith(b" "):
        piece = piece[1:]
    if len(piece) == 6 and piece.startswith(b"<0x"):
        return bytes([int(piece[3:5], 16)])
    return piece


class Run:
    """The pass, one token after the other: run.c's, or on weights held as ``Int8`` runq.c's."""

    def __init__(self, c: Config, w: dict[str, Any]):
        self.c, self.w = c, w
        self.keys = np.zeros((c.layers, c.context, c.shared, c.size), F32)
        self.values = np.zeros_like(self.keys)

    def forward(self, token: int, pos: int) -> np.ndarray:
        c, w = self.c, self.w

        def norm(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
            return weight * (x / np.sqrt((x * x).mean(dtype=F32) + F32(1e-5)))

        def turn(x: np.ndarray) -> np.ndarray:
            out = x.copy()
            for i in range(0, c.size, 2):
                angle = F32(pos) * F32(1 / 10000.0 ** (i / c.size))
                cos, sin = np.cos(angle, dtype=F32), np.sin(angle, dtype=F32)
                out[:, i], out[:, i + 1] = x[:, i] * cos - x[:, i + 1] * sin, x[:, i] * sin + x[:, i + 1] * cos
            return out

        x = w["tok"][token].copy()
        for layer in range(c.layers):
            h = norm(x, w["att"][layer])
            q = turn((w["wq"][layer] @ h).reshape(c.heads, c.size))
            self.keys[layer, pos] = turn((w["wk"][layer] @ h).reshape(c.shared, c.size))
            self.values[layer, pos] = (w["wv"][layer] @ h).reshape(c.shared, c.size)
            out = np.zeros((c.heads, c.size), F32)
            for head in range(c.heads):
                mine = head // (c.heads // c.shared)
                scores = self.keys[layer, : pos + 1, mine] @ q[head] / F32(np.sqrt(c.size))
                weight = np.exp(scores - scores.max())
                out[head] = (weight / weight.sum()) @ self.values[layer, : pos + 1, mine]
            x = x + w["wo"][layer] @ out.reshape(-1)
            h = norm(x, w["ffn"][layer])
            gate, up = w["w1"][layer] @ h, w["w3"][layer] @ h
            x = x + w["w2"][layer] @ (gate * (F32(1) / (F32(1) + np.exp(-gate))) * up)
        return w.get("out", w["tok"]) @ norm(x, w["last"])


class Sampler:
    """run.c's: temperature, softmax, a coin, and the smallest set of tokens above top_p."""

    def __init__(self, temperature: float, top_p: float, seed: int):
        self.temperature, self.top_p, self.state = F32(temperature), F32(top_p), seed

    def coin(self) -> np.float32:
        mask = (1 << 64) - 1
        self.state ^= self.state >> 12
        self.state = (self.state ^ (self.state << 25)) & mask
        self.state ^= self.state >> 27
        return F32((((self.state * 0x2545F4914F6CDD1D) & mask) >> 32 >> 8) / 16777216.0)

    def pick(self, logits: np.ndarray) -> int:
        if self.temperature == 0:
            return int(np.argmax(logits))
        x = logits / self.temperature
        x = np.exp(x - x.max())
        total = F32(0)
        for value in x:
            total += value
        probs = x / total
        coin = self.coin()
        if self.top_p <= 0 or self.top_p >= 1:
            order, last, limit = list(range(len(probs))), len(probs) - 1, coin
        else:
            cutoff = (F32(1) - self.top_p) / F32(len(probs) - 1)
            order = sorted((i for i in range(len(probs)) if probs[i] >= cutoff), key=lambda i: -probs[i])
            sums, last = F32(0), len(order) - 1
            for place, i in enumerate(order):
                sums += probs[i]
                if sums > self.top_p:
                    last = place
                    break
            limit = coin * sums
        at = F32(0)
        for i in order[: last + 1]:
            at += probs[i]
            if limit < at:
                return i
        return order[last]


def generate(
    c: Config, w: dict[str, Any], tokens: list[tuple[float, bytes]], sampler: Sampler, prompt: str, steps: int
) -> tuple[list[int], bytes]:
    """Tokens and bytes after the prompt, up to ``steps`` positions or where the next text would begin."""
    run, ids = Run(c, w), encode(tokens, prompt)
    made: list[int] = []
    text, token, pos = b"", ids[0], 0
    while pos < steps:
        logits = run.forward(token, pos)
        pos += 1
        following = ids[pos] if pos < len(ids) else sampler.pick(logits)
        if following == 1:
            break
        if pos >= len(ids):
            made.append(following)
            text += decode(tokens, token, following)
        token = following
    return made, text


def write(folder: Path, data: bytes, tokens: list[tuple[float, bytes]], name: str = "stories.bin") -> Path:
    """A checkpoint with its tokenizer.bin beside it."""
    (folder / "tokenizer.bin").write_bytes(tokenizer_bin(tokens))
    (folder / name).write_bytes(data)
    return folder / name
