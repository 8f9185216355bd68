"""Operands of every op, drawn from its declaration in ``ds4ref.kernels.ops``.

The few that mean more than their shape says (ids, counts, positions) are drawn by name.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np

from ds4ref.kernels.formats import Matrix
from ds4ref.kernels.ops import OPS, Op, Operand

from .test_cpu_ops import matrix

DRAWS = range(6)
SIZES = ("k", "count", "ratio", "group", "channels", "size")
"""Arguments that say how many."""
KINDS = {"f32": np.float32, "i32": np.int32, "i64": np.int64, "i8": np.int8, "i16": np.int16}
PLAIN = [("F32", "float"), ("F16", "float"), ("BF16", "float")]
BLOCKED = [*PLAIN, ("Q8_0", "a8"), ("Q8_0", "float"), ("Q4_K", "q8k"), ("Q2_K", "q8k"), ("IQ2_XXS", "q8k")]
BLOCKED += [("F8_E4M3", "float"), ("MXFP4", "float")]
COLUMNS = {"Q8_0": 32, "Q4_K": 256, "Q2_K": 256, "IQ2_XXS": 256, "F8_E4M3": 128, "MXFP4": 32}
EXACT = {
    "round_e4m3",
    "round_e2m1",
    "round_f16",
    "round_nvfp4",
    "block_maxima",
    "block_rows",
    "round_i8",
    "quantize_a8",
    "quantize_q8k",
    "streams",
    "windows",
    "embed",
    "top",
}


LARGER: dict[str, dict[str, int]] = {
    "attend": {"T": 21, "K": 2, "g": 11, "d": 33, "N": 300},
    "attention": {"T": 3, "H": 70, "d": 100, "N": 200, "M": 1500, "k": 1030},
    "block_scores": {"T": 3, "H": 70, "d": 128, "n": 1030, "size": 8, "b": 33},
    "engram_gate": {"T": 3, "C": 4, "D": 4096},
    "expert_linear": {"T": 21, "K": 6, "E": 300, "R": 70, "n": 512},
    "expert_sum": {"T": 21, "K": 6, "E": 11, "R": 131, "n": 512},
    "grouped_linear": {"T": 19, "G": 8, "r": 33, "n": 512},
    "hc_expand": {"T": 3, "C": 4, "D": 4096},
    "hc_mix": {"T": 3, "C": 4, "D": 1792, "R": 24},
    "hc_split": {"T": 5, "C": 4},
    "index_scores": {"T": 3, "H": 70, "d": 128, "n": 1030},
    "linear": {"T": 130, "R": 131, "n": 1024},
    "pool": {"n": 3, "m": 128, "c": 512},
    "rms_norm": {"n": 28672},
    "rope": {"T": 3, "H": 64, "r": 32, "p": 448},
    "route": {"T": 5, "E": 384, "k": 6},
    "select_rows": {"T": 3, "n": 3000, "k": 1024},
    "swiglu": {"n": 3000},
    "top": {"T": 3, "n": 2100, "k": 1024},
}
"""Sizes of several blocks, tiles or chunks, by op."""


class Sizes(dict[str, int]):
    """Sizes by name, drawn when they are first asked for."""

    def __init__(self, draw: Callable[[str], int]):
        super().__init__()
        self._draw = draw

    def __missing__(self, name: str) -> int:
        self[name] = self._draw(name)
        return self[name]


def names(dim: str) -> set[str]:
    return set(re.findall(r"[A-Za-z]\w*", dim))


class Case:
    """Operands of one op, and the sizes that were drawn for the names of its dims."""

    def __init__(self, op: Op, seed: int, sizes: dict[str, int] | None = None):
        self.op, self.rng = op, np.random.default_rng([seed, *op.name.encode()])
        self.format, self.act = self._pick(PLAIN if op.name in ("hc_mix", "embed") else BLOCKED)
        self.lead = [self._pick((1, 2, 3, 7)) for _ in range(self._pick((1, 2)))]
        self.sizes = Sizes(self._draw)
        self.sizes.update(sizes or {})
        self.sizes["overlap"] = int(self.rng.integers(2))
        self.args = [self._value(operand) for operand in op.operands]
        self.args[:] = [value() if callable(value) else value for value in self.args]

    def _pick(self, values: Any) -> Any:
        return values[int(self.rng.integers(len(values)))]

    def size(self, text: str) -> int:
        """A declared dim or limit."""
        return int(eval(text, {}, self.sizes))

    def shape(self, operand: Operand) -> list[int]:
        dims = operand.dims or ()
        return [*self.lead, *map(self.size, dims[1:])] if dims[0] == "..." else [*map(self.size, dims)]

    def _draw(self, name: str) -> int:
        drawn = self._pick((1, 2, 3, 5, 7))
        if name == "T":  # from 9 on products go another way
            return self._pick((1, 2, 5, 9, 14))
        if name == "n" and any(operand.kind == "matrix" for operand in self.op.operands):
            return COLUMNS.get(self.format, 1) * drawn
        if name == "n" and self.op.name == "round_e4m3":
            return 64 * self._pick((1, 2, 3))
        if name == "p":
            return self._pick((0, 1, 4))
        if name == "b":
            return self._pick((0, 3, 7, 7, 8) if self.op.name == "hadamard" else (1, 2, 3))
        if name == "count" and self.op.name == "block_maxima":
            return -(-self.size("n") // self.size("size")) + self._pick((0, 1))
        if name == "k" and self.op.name in ("route", "top"):
            return int(self.rng.integers(1, self.size("E" if self.op.name == "route" else "n") + 1))
        if name == "N" and self.op.name == "windows":  # holds the window under way and the one before
            return 2 * self.size("ratio") + drawn
        if name in ("N", "M", "n", "E", "R", "r"):
            return self._pick((1, 3, 8, 17, 40))
        return drawn

    def _value(self, operand: Operand) -> Any:
        if operand.dims is None:
            return lambda: self._argument(operand.name)
        if operand.name == "into":  # see the test of its own
            return None
        if operand.optional and self.rng.integers(2):
            others = [each for each in self.op.operands if each.dims is None or not each.optional]
            for name in set().union(*map(names, operand.dims)) - {each.name for each in others}:
                if not any(name in names(dim) for each in others for dim in each.dims or ()):
                    self.sizes[name] = 0
            return None
        shape = self.shape(operand)
        if operand.kind == "matrix":
            *experts, rows, cols = shape
            return matrix(self.format, rows, cols, *experts, seed=int(self.rng.integers(100)))
        if operand.kind in ("f32", "any"):
            values = self.rng.standard_normal(shape).astype(np.float32)
            return values.astype(np.float16) if operand.kind == "any" and self.rng.integers(2) else values
        return lambda: self._integers(operand, shape).astype(KINDS[operand.kind])

    def _integers(self, operand: Operand, shape: list[int]) -> np.ndarray:
        """Numbers within the limits that are declared, else what they mean."""
        s, name = self.sizes, operand.name
        if self.op.name == "windows":  # a window closes among the new rows
            last = int(self.rng.integers(s["ratio"], 50 * s["ratio"])) * s["ratio"]
            at = max(0, last - int(self.rng.integers(1, s["T"] + 1)))
            s["count"] = (at + s["T"]) // s["ratio"] - at // s["ratio"]
            return np.array([at])
        if operand.limits is None:
            low, high = {
                "visible": (0, s.get("n", 0) + 1), "count": (0, s.get("n", 0) + 1), "at": (0, 1000), "counts": (0, 9),
                "table": (-(2**31), 2**31), "ids": (-2, s.get("E", 0) + 2),
                "picks": (-1, s.get("b", 0) * s.get("size", 0) + 2), "blocks": (-1, 9),
            }[name]  # fmt: skip
        else:
            least, greatest = operand.limits
            low, high = self.size(least or "-1"), self.size(greatest or "99") + 1
        if name in ("raw_count", "row_counts"):  # of no rows there is no mean
            low = 1
        return self.rng.integers(low, high, shape)

    def _argument(self, name: str) -> Any:
        if name == "overlap":
            return bool(self.sizes["overlap"])
        if name in SIZES and name != "channels":
            return self.size(name)
        if name == "channels":
            return self._pick((None, *range(64, self.size("n") + 1, 64)))
        choices = {
            "act": (self.act,), "block": (32, 64), "eps": (1e-6, 1e-5), "iters": (1, 3, 20), "factor": (0.37, -3.0),
            "inverse": (False, True), "halves": (False, True),
            "scale": (0.11, 1.5), "floor": (False, True), "limit": (0.6, 10.0, math.inf),
        }  # fmt: skip
        return self._pick(choices[name])

    def copies(self) -> list[Any]:
        return [value.copy() if isinstance(value, np.ndarray) else value for value in self.args]

    def run(self, ops: Any, args: list[Any]) -> tuple[np.ndarray, ...]:
        """The op's results, then what it wrote in place."""
        out = getattr(ops, self.op.name)(*args)
        results = () if out is None else out if isinstance(out, tuple) else (out,)
        return *results, *self.written(args)

    def written(self, args: list[Any]) -> list[np.ndarray]:
        pairs = zip(self.op.operands, args, strict=True)
        return [value for operand, value in pairs if operand.written and value is not None]

    def seen(self, results: Any) -> list[np.ndarray]:
        """Results without what is undefined in them."""
        if self.op.name == "block_scores":  # without the rows that do not exist
            return [np.where(np.isneginf(r), np.float32(0), r) for r in results]
        return [r[:, : int(self.args[3][0])] if self.op.name == "index_scores" else r for r in results]

    def result_shapes(self) -> list[tuple[int, ...]]:
        return [tuple(self.shape(result)) for result in self.op.results]

    def fits(self) -> bool:
        """Whether the arguments are as declared, by trying all values of the sizes that are not plain names."""
        env: dict[str, Any] = {}
        pairs: list[tuple[str, Any]] = []
        lead: Any = None
        for operand, value in zip(self.op.operands, self.args, strict=True):
            if operand.dims is None:
                env[operand.name] = value
            elif value is not None:
                shape = (*value.data.shape[:-2], value.rows, value.cols) if isinstance(value, Matrix) else value.shape
                dims = operand.dims
                if dims[0] == "...":
                    dims, own = dims[1:], shape[: len(shape) - len(dims) + 1]
                    lead = own if lead is None else lead
                    if own != lead:
                        return False
                    shape = shape[len(own) :]
                if len(dims) != len(shape):
                    return False
                pairs += zip(dims, shape, strict=True)
        for dim, size in pairs:
            if dim.isidentifier() and env.setdefault(dim, size) != size:
                return False
        free = sorted(set().union(*(names(dim) for dim, _ in pairs)) - env.keys())
        assert len(free) <= 1
        for value in range(1 + max((size for _, size in pairs), default=0)):
            sizes = {**env, **dict.fromkeys(free, value)}
            if all(eval(dim, {}, sizes) == size for dim, size in pairs):
                numbers = all(sizes[name] >= 0 for name in self._plain_sizes())
                return numbers and (not self.op.where or bool(eval(self.op.where, {}, sizes)))
        return False

    def _plain_sizes(self) -> set[str]:
        """Arguments that are sizes."""
        dims = set().union(*(names(dim) for each in (*self.op.operands, *self.op.results) for dim in each.dims or ()))
        return dims & {operand.name for operand in self.op.operands if operand.dims is None}


def drawn(name: str) -> list[Case]:
    """Cases of an op."""
    return [Case(OPS[name], seed) for seed in DRAWS]


def sizable(name: str) -> list[Case]:
    """Cases of an op that take several blocks, tiles or chunks."""
    return [Case(OPS[name], seed, LARGER[name]) for seed in range(10, 14)] if name in LARGER else []


def bits(array: np.ndarray) -> bytes:
    return np.ascontiguousarray(array).tobytes()
