"""Every op of every backend, driven from its declaration in ``kernels.ops``.

Operands are drawn from the declared kinds and sizes; the few that mean more than their shape says (ids, counts,
positions) are drawn by name. What holds for all ops is then held against all of them: results as declared, operands
left alone, the compiled ops equal to the reference and recorded ones equal to immediate ones. What one op in
particular must do is in ``test_cpu_ops`` and ``test_pitfalls``.
"""

from __future__ import annotations

import inspect
import math
import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import kernels.cuda.backend
from kernels.cpu import CPU
from kernels.cpu.backend import Recorded
from kernels.formats import Matrix
from kernels.ops import OPS, Backend, Op, Operand
from kernels.reference import Reference

from . import cpu, cuda, reference
from .test_cpu_ops import assert_close, matrix

DRAWS = range(6)
KINDS = {"f32": np.float32, "i32": np.int32, "i64": np.int64, "i8": np.int8, "i16": np.int16}
PLAIN = [("F32", "float"), ("F16", "float"), ("BF16", "float")]
BLOCKED = [*PLAIN, ("Q8_0", "a8"), ("Q8_0", "float"), ("Q4_K", "q8k"), ("Q2_K", "q8k"), ("IQ2_XXS", "q8k")]
BLOCKED += [("F8_E4M3", "float"), ("MXFP4", "float")]
COLUMNS = {"Q8_0": 32, "Q4_K": 256, "Q2_K": 256, "IQ2_XXS": 256, "F8_E4M3": 128, "MXFP4": 32}
EXACT = {
    "round_e4m3",
    "round_e2m1",
    "round_f16",
    "round_i8",
    "quantize_a8",
    "quantize_q8k",
    "streams",
    "windows",
    "embed",
    "top",
}


class Case:
    """Operands of one op, and the sizes that were drawn for the names of its dims."""

    def __init__(self, op: Op, seed: int):
        self.op, self.rng = op, np.random.default_rng([seed, *op.name.encode()])
        self.format, self.act = self._pick(PLAIN if op.name in ("hc_mix", "embed") else BLOCKED)
        self.sizes: dict[str, int] = {}
        self.overlap = bool(self.rng.integers(2))
        self.args = [self._value(operand) for operand in op.operands]
        self.args[:] = [value() if callable(value) else value for value in self.args]

    def _pick(self, values: Any) -> Any:
        return values[int(self.rng.integers(len(values)))]

    def size(self, text: str) -> int:
        """A declared dim: a number, a name, or a sum of products of them."""
        return sum(int(np.prod([self._factor(f) for f in term.split("*")])) for term in text.split("+"))

    def _factor(self, name: str) -> int:
        if name.isdigit():
            return int(name)
        if name not in self.sizes:
            self.sizes[name] = self._draw(name)
        return self.sizes[name]

    def _draw(self, name: str) -> int:
        drawn = self._pick((1, 2, 3, 5, 7))
        if name == "T":  # from 8 on products go another way
            return self._pick((1, 2, 5, 9, 14))
        if name == "n" and any(operand.kind == "matrix" for operand in self.op.operands):
            return COLUMNS.get(self.format, 1) * drawn
        if name == "b":
            return self._pick((1, 2, 3))
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
        if operand.optional and self.rng.integers(2):
            return None
        shape = [self.size(dim) for dim in operand.dims]
        if operand.kind == "matrix":
            *experts, rows, cols = shape
            return matrix(self.format, rows, cols, *experts, seed=int(self.rng.integers(100)))
        if operand.kind in ("f32", "any"):
            values = self.rng.standard_normal(shape).astype(np.float32)
            return values.astype(np.float16) if operand.kind == "any" and self.rng.integers(2) else values
        return lambda: self._integers(operand.name, shape).astype(KINDS[operand.kind])

    def _integers(self, name: str, shape: list[int]) -> np.ndarray:
        """Numbers that mean something: below a bound that is the size of something else."""
        s = self.sizes
        low, high = {
            "ids": (0, s.get("V", s.get("E"))), "hash_ids": (0, s.get("E")), "selected": (-1, s.get("M", 1)),
            "visible": (0, s.get("n", 0) + 1), "count": (0, s.get("n", 0) + 1), "at": (0, 1000),
            "raw_first": (0, 3 * s.get("N", 1)), "raw_count": (1, s.get("N", 1) + 1), "counts": (0, 9),
            "comp_count": (0, s.get("M", 0) + 1),
            "first": (0, 3 * s.get("N", 1)), "seen": (1, s.get("N", 1) + 1), "table": (-(2**31), 2**31),
        }[name]  # fmt: skip
        if self.op.name == "count" and name == "ids":
            low, high = -2, high + 2
        if self.op.name == "windows":  # a window closes among the new rows
            ratio = self.size("ratio")
            last = int(self.rng.integers(ratio, 50 * ratio)) * ratio
            at = max(0, last - int(self.rng.integers(1, s["T"] + 1)))
            s["count"] = (at + s["T"]) // ratio - at // ratio
            return np.array([at])
        return self.rng.integers(low, high, shape)

    def _argument(self, name: str) -> Any:
        if name == "overlap":
            return self.overlap
        if name in ("count", "ratio", "k", "group"):
            return self.size(name)
        if name == "channels":
            return self._pick((None, *range(64, 64 * self.size("b") + 1, 64)))
        choices = {
            "act": (self.act,), "eps": (1e-6, 1e-5), "iters": (1, 3, 20), "factor": (0.37, -3.0),
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
        return [value for operand, value in zip(self.op.operands, args, strict=True) if operand.written]

    def seen(self, results: Any) -> list[np.ndarray]:
        """Results without what is undefined in them."""
        return [r[:, : int(self.args[3][0])] if self.op.name == "index_scores" else r for r in results]

    def result_shapes(self) -> list[tuple[int, ...]]:
        if self.op.name == "windows" and not self.overlap:
            return [(self.size("count"), self.size("ratio"), self.size("2*c"))]
        return [tuple(self.size(dim) for dim in result.dims or ()) for result in self.op.results]


def drawn(name: str, ops: Any = None) -> list[Case]:
    """Cases of an op. Products that the simulator computes thread by thread are the two smallest of them."""
    cases = [Case(OPS[name], seed) for seed in DRAWS]
    multiplies = any(operand.kind == "matrix" for operand in OPS[name].operands)
    if ops is not cuda or not multiplies or os.environ.get("DS4_TEST_CUDA", "simulated") != "simulated":
        return cases
    return sorted(cases, key=lambda case: math.prod(case.sizes.get(dim, 1) for dim in "TKRGrn"))[:2]


every_op = pytest.mark.parametrize("name", sorted(OPS))
every_backend = pytest.mark.parametrize("ops", [reference, cpu, cuda], ids=["reference", "cpu", "cuda"])
each_compiled = pytest.mark.parametrize("ops", [cpu, cuda], ids=["cpu", "cuda"])


def bits(array: np.ndarray) -> bytes:
    return np.ascontiguousarray(array).tobytes()


# ---- declarations


def parameters(function: Any) -> list[tuple[str, Any, Any]]:
    found = inspect.signature(function).parameters.values()
    return [(p.name, p.kind, p.default) for p in found if p.name != "self"]


METHODS = [name for name, member in vars(Backend).items() if inspect.isfunction(member) and name[0] != "_"]


@pytest.mark.parametrize("backend", [Reference, CPU, kernels.cuda.CUDA])
@pytest.mark.parametrize("name", METHODS)
def test_backends_offer_what_is_declared(backend: type, name: str) -> None:
    assert parameters(getattr(backend, name)) == parameters(getattr(Backend, name))
    assert isinstance(backend().name, str) and backend().threads >= 1


@every_op
@pytest.mark.parametrize("recorded", [Recorded, kernels.cuda.backend.Recorded])
def test_a_recording_offers_every_op(name: str, recorded: type) -> None:
    assert parameters(getattr(recorded, name)) == parameters(getattr(Backend, name))


@every_op
def test_a_declaration_names_the_parameters(name: str) -> None:
    op, method = OPS[name], getattr(Backend, name)
    assert [operand.name for operand in op.operands] == [p for p, *_ in parameters(method)]
    for operand in op.operands:
        said = method.__annotations__[operand.name]
        wanted = {"matrix": "Matrix", "": said}.get(operand.kind, "Array")
        assert said == wanted + " | None" * operand.optional
    results = {0: "None", 1: "Array"}.get(len(op.results), f"tuple[{', '.join(['Array'] * len(op.results))}]")
    assert method.__annotations__["return"] == results


def test_what_is_no_op_is_about_memory() -> None:
    assert set(METHODS) - set(OPS) == {"load", "record", "array", "upload", "place", "fill", "host"}


# ---- behaviour


@every_op
@every_backend
def test_results_are_as_declared_and_operands_are_left_alone(name: str, ops: Any) -> None:
    for case in drawn(name, ops):
        args = case.copies()
        results = case.run(ops, args)[: len(case.op.results)]
        for result, declared, shape in zip(results, case.op.results, case.result_shapes(), strict=True):
            assert result.shape == shape and result.dtype == KINDS[declared.kind]
            assert result.flags.c_contiguous
        for operand, before, after in zip(case.op.operands, case.args, args, strict=True):
            for result in results:
                memory = after.data if isinstance(after, Matrix) else after
                assert not isinstance(memory, np.ndarray) or not np.shares_memory(result, memory), operand.name
            if isinstance(before, np.ndarray) and not operand.written:
                assert bits(before) == bits(after), operand.name


@every_op
@each_compiled
def test_compiled_ops_agree_with_the_reference(name: str, ops: Any) -> None:
    for case in drawn(name, ops):
        got, wanted = (case.seen(case.run(each, case.copies())) for each in (ops, reference))
        for g, w in zip(got, wanted, strict=True):
            if w.dtype.kind != "f" or name in EXACT:
                np.testing.assert_array_equal(g, w)
            else:
                assert_close(g, w, 6e-6)


@every_op
@each_compiled
def test_recorded_and_immediate_are_equal_to_the_bit(name: str, ops: Any) -> None:
    for case in drawn(name, ops):
        wanted, args = case.run(ops, case.copies()), case.copies()
        recording = ops.record()
        results = case.run(recording, args)[: len(case.op.results)]
        if name == "embed":  # looked up before the steps run, so it is no output by itself
            results = (recording.scale(*results, 1.0),)
        recording.seal(*results)
        assert [bits(w) for w in case.written(args)] == [bits(w) for w in case.written(case.args)], "not run yet"
        recording.replay()
        got = (*recording.outputs, *case.written(args))
        assert [bits(r) for r in case.seen(got)] == [bits(r) for r in case.seen(wanted)]


FLOATS = [(name, operand.name) for name, op in sorted(OPS.items()) for operand in op.operands if operand.kind == "f32"]
ORDERED = {("select_rows", "scores")}
"""Which of them a NaN beats is not defined."""


@pytest.mark.parametrize(("name", "operand"), [pair for pair in FLOATS if pair not in ORDERED])
@each_compiled
def test_what_is_not_finite_is_not_hidden(name: str, operand: str, ops: Any) -> None:
    """A NaN or an infinity leaves the compiled op where it leaves the reference, whatever it has become there."""
    number = [each.name for each in OPS[name].operands].index(operand)
    for case in drawn(name, ops):
        for bad in (np.nan, np.inf, -np.inf):
            args = case.copies()
            if args[number] is None or not args[number].size:
                continue
            if name == "route":  # which of them a NaN beats is not defined
                args[2] = np.zeros((len(args[0]), case.size("k")), np.int32)
            args[number].flat[case.rng.integers(args[number].size)] = bad
            with np.errstate(all="ignore"):
                want = case.run(reference, [a.copy() if isinstance(a, np.ndarray) else a for a in args])
            got = case.run(ops, args)
            for g, w in zip(case.seen(got), case.seen(want), strict=True):
                if w.dtype.kind == "f":
                    np.testing.assert_array_equal(np.isfinite(g), np.isfinite(w), err_msg=f"{bad} in {operand}")


# ---- what does not fit


def names(dim: str) -> set[str]:
    return {factor for term in dim.split("+") for factor in term.split("*") if not factor.isdigit()}


def tied(case: Case, operand: Operand, dim: str) -> bool:
    """Whether one more along this axis cannot be right: its size is fixed, a multiple, or that of another operand."""
    if operand.name == "x" and case.op.name == "round_e4m3" and case.args[1] is not None:
        return False  # the rest of the channels are any number
    own = set().union(*map(names, operand.dims or ()))
    elsewhere = {"k", "ratio"} & {each.name for each in case.op.operands if each.dims is None}
    for other, value in zip(case.op.operands, case.args, strict=True):
        if other is not operand and value is not None:
            elsewhere |= set().union(
                *(found for found in map(names, other.dims or ()) if len(found) == 1 or found <= own)
            )
    factors = [] if "+" in dim else dim.split("*")
    return any(factor.isdigit() and factor != "2" for factor in factors) or names(dim) <= elsewhere


ARRAYS = [
    (name, operand.name)
    for name, op in sorted(OPS.items())
    for operand in op.operands
    if operand.dims is not None and operand.kind != "matrix"
]
each_array = pytest.mark.parametrize(("name", "operand"), ARRAYS)


def spoiled(name: str, operand: str, ops: Any = None) -> Iterator[tuple[Case, int, Operand]]:
    """Cases where this operand is there, its place among the arguments, and its declaration."""
    place = [each.name for each in OPS[name].operands].index(operand)
    for case in drawn(name, ops):
        if case.args[place] is not None and not (operand == "selected" and case.args[4] is None):
            yield case, place, OPS[name].operands[place]


@each_array
@each_compiled
def test_wrong_sizes_raise(name: str, operand: str, ops: Any) -> None:
    for case, place, declared in spoiled(name, operand, ops):
        good = case.args[place]
        for axis, dim in enumerate(declared.dims or ()):
            if tied(case, declared, dim):
                wider = [(0, int(each == axis)) for each in range(good.ndim)]
                case.args[place] = np.pad(good, wider)
                with pytest.raises(ValueError, match=r".+"):
                    case.run(ops, case.copies())


@each_array
@each_compiled
def test_wrong_types_raise(name: str, operand: str, ops: Any) -> None:
    for case, place, declared in spoiled(name, operand, ops):
        other = {"f32": np.float64, "any": np.float64, "i32": np.int64, "i64": np.int32}[declared.kind]
        case.args[place] = case.args[place].astype(other)
        with pytest.raises(TypeError, match=declared.name):
            case.run(ops, case.copies())


@each_array
@each_compiled
def test_gaps_between_values_are_closed(name: str, operand: str, ops: Any) -> None:
    """Except where they would have to be closed behind the caller's back: in what is written, and in recordings."""
    for case, place, declared in spoiled(name, operand, ops):
        wanted, args, good = case.run(ops, case.copies()), case.copies(), case.args[place]
        args[place] = np.repeat(good, 2, axis=-1)[..., ::2]
        if args[place].flags.c_contiguous:
            continue
        if declared.written:
            with pytest.raises(ValueError, match=r".+"):
                case.run(ops, args)
        else:
            got = case.run(ops, args)
            assert [bits(r) for r in case.seen(got)] == [bits(r) for r in case.seen(wanted)]
        if name != "embed":  # looked up by Python
            with pytest.raises(ValueError, match=r".+"):
                case.run(ops.record(), args)


INDICES = [
    ("expert_linear", "ids", "E"),
    ("expert_sum", "ids", "E"),
    ("advise", "ids", "E"),
    ("route", "hash_ids", "E"),
]
INDICES += [
    ("embed", "ids", "V"),
    ("take_rows", "ids", "V"),
    ("attention", "raw_count", "N+1"),
    ("attend", "seen", "N+1"),
]
INDICES += [("attention", "comp_count", "M+1"), ("attention", "selected", "M")]


@pytest.mark.parametrize(("name", "operand", "end"), INDICES)
@each_compiled
def test_numbers_out_of_range_raise(name: str, operand: str, end: str, ops: Any) -> None:
    """At once and in a recording, which then works again once the number is mended."""
    for case, place, _ in spoiled(name, operand, ops):
        if name == "attention" and (case.args[4] is None or (operand == "comp_count" and case.args[6] is not None)):
            continue
        wanted, args = case.run(ops, case.copies()), case.copies()
        recording = ops.record()
        results = case.run(recording, args)[: len(case.op.results)]
        if name == "embed":
            results = (recording.scale(*results, 1.0),)
        recording.seal(*results)
        good = args[place].copy()
        for bad in (case.size(end), *([-1] if operand != "selected" else [])):
            args[place].flat[int(case.rng.integers(good.size))] = bad
            with pytest.raises(IndexError):
                case.run(ops, args)
            with pytest.raises(IndexError):
                recording.replay()
            args[place][...] = good
            recording.replay()
            assert [bits(r) for r in recording.outputs] == [bits(r) for r in wanted[: len(results)]]
