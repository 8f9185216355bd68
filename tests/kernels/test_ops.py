"""Every op of every backend, driven from its declaration in ``ds4ref.kernels.ops``.

Operands are drawn from the declared kinds and sizes; the few that mean more than their shape says (ids, counts,
positions) are drawn by name. What holds for all ops is then held against all of them: results as declared, operands
left alone, the compiled ops equal to the reference and recorded ones equal to immediate ones. What one op in
particular must do is in ``test_cpu_ops`` and ``test_pitfalls``.
"""

from __future__ import annotations

import inspect
import math
import re
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import ds4ref.kernels.cuda.backend
from ds4ref.kernels.binding import bind
from ds4ref.kernels.cpu import CPU
from ds4ref.kernels.cpu.backend import Recorded
from ds4ref.kernels.formats import Matrix
from ds4ref.kernels.ops import OPS, Backend, Op, Operand
from ds4ref.kernels.reference import Reference

from . import cpu, reference
from .cuda.device import cuda
from .test_cpu_ops import assert_close, matrix

DRAWS = range(6)
SIZES = ("k", "count", "ratio", "group", "channels")
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
    "round_i8",
    "quantize_a8",
    "quantize_q8k",
    "streams",
    "windows",
    "embed",
    "top",
}


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

    def __init__(self, op: Op, seed: int):
        self.op, self.rng = op, np.random.default_rng([seed, *op.name.encode()])
        self.format, self.act = self._pick(PLAIN if op.name in ("hc_mix", "embed") else BLOCKED)
        self.lead = [self._pick((1, 2, 3, 7)) for _ in range(self._pick((1, 2)))]
        self.sizes = Sizes(self._draw)
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
            for name in set().union(*map(names, operand.dims)) - {each.name for each in self.op.operands}:
                self.sizes.setdefault(name, 0)
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
        pairs = zip(self.op.operands, args, strict=True)
        return [value for operand, value in pairs if operand.written and value is not None]

    def seen(self, results: Any) -> list[np.ndarray]:
        """Results without what is undefined in them."""
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


IMMEDIATE = (Reference, CPU, ds4ref.kernels.cuda.CUDA)
RECORDING = (Recorded, ds4ref.kernels.cuda.backend.Recorded)


def test_every_backend_offers_what_is_declared_and_nothing_stands_between() -> None:
    """The same parameters, names and defaults, also in recordings; the checks made from the declaration come first."""
    for backend in (Reference, CPU):  # the third needs a device
        assert isinstance(backend().name, str) and backend().threads >= 1
    for backend in (*IMMEDIATE, *RECORDING):
        for name in OPS if backend in RECORDING else METHODS:
            offered = getattr(backend, name)
            assert parameters(offered) == parameters(getattr(Backend, name)), (backend, name)
            assert name not in OPS or offered.__code__.co_filename.startswith(f"<{name} of ds4ref.kernels."), name


def test_a_launch_gets_only_what_is_declared() -> None:
    def pool(kv: Any, score: Any, out: Any, w: Any) -> None: ...

    with pytest.raises(TypeError, match=r"launch of pool wants \['w'\]"):
        bind(pool)


def test_a_declaration_names_the_parameters() -> None:
    for name, op in OPS.items():
        method = getattr(Backend, name)
        assert [operand.name for operand in op.operands] == [p for p, *_ in parameters(method)], name
        for operand in op.operands:
            said = method.__annotations__[operand.name]
            wanted = {"matrix": "Matrix", "": said}.get(operand.kind, "Array")
            assert said == wanted + " | None" * operand.optional, (name, operand.name)
        results = {0: "None", 1: "Array"}.get(len(op.results), f"tuple[{', '.join(['Array'] * len(op.results))}]")
        assert method.__annotations__["return"] == results, name


def test_what_is_no_op_is_about_memory() -> None:
    assert set(METHODS) - set(OPS) == {"load", "record", "array", "upload", "place", "fill", "host"}


# ---- behaviour


@every_op
@every_backend
def test_results_are_as_declared_and_operands_are_left_alone(name: str, ops: Any) -> None:
    for case in drawn(name)[: 1 if ops is cuda else None]:
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


@pytest.mark.parametrize("name", ["attend", "attention"])
@pytest.mark.parametrize("ops", [reference, cpu], ids=["reference", "cpu"])
def test_a_result_goes_into_a_part_of_an_array(name: str, ops: Any) -> None:
    """The values, there and nowhere else; an array of another shape, with gaps, or that is read too is refused."""
    for case in drawn(name):
        place = [each.name for each in case.op.operands].index("into")
        (wanted,) = case.run(ops, case.copies())[:1]
        whole = np.full((len(wanted) + 2, *wanted.shape[1:]), 7, np.float32)
        case.args[place] = whole[1:-1]
        args = [*case.args]
        assert getattr(ops, name)(*args) is args[place]
        np.testing.assert_array_equal(whole[1:-1], wanted)
        assert (whole[0] == 7).all() and (whole[-1] == 7).all()
        gaps = np.zeros((*wanted.shape[:-1], 2 * wanted.shape[-1]), np.float32)[..., ::2]
        for value in (whole, gaps, args[0]):
            case.args[place] = value
            with pytest.raises(ValueError, match="into|shapes do not fit"):
                getattr(ops, name)(*case.args)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1)])
def test_steps_that_write_parts_of_one_array_do_not_wait_for_each_other(order: tuple[int, ...]) -> None:
    """But who reads the array waits for all of them, and who writes a part again for the reader."""
    recording: Any = cpu.record()
    cases = [Case(OPS["attention"], seed) for seed in DRAWS]
    case = next(case for case in cases if case.sizes["T"] > 2)
    wanted = case.run(cpu, case.copies())[0]
    args = case.copies()
    whole = recording.array(3, *wanted.shape)
    place = [each.name for each in case.op.operands].index("into")
    for part in order:
        args[place] = whole[part]
        recording.attention(*args)
    recording.seal(recording.scale(whole, 2.0))
    recording.replay()
    np.testing.assert_array_equal(recording.outputs[0], 2 * np.stack([wanted] * 3))
    assert recording.timeline()[2].tolist().count(1) == 2, "one level of attention, one of the reader"


@every_op
def test_compiled_ops_agree_with_the_reference(name: str) -> None:
    """The CPU's; those of CUDA: ``cuda/lowering/test_lowered_ops.py``."""
    for case in drawn(name):
        got, wanted = (case.seen(case.run(each, case.copies())) for each in (cpu, reference))
        for g, w in zip(got, wanted, strict=True):
            if w.dtype.kind != "f" or name in EXACT:
                np.testing.assert_array_equal(g, w)
            else:
                assert_close(g, w, 6e-6)


def recorded(case: Case, ops: Any, args: list[Any]) -> Any:
    """The op in a recording of its own."""
    recording = ops.record()
    results = case.run(recording, args)[: len(case.op.results)]
    if case.op.name == "embed":  # looked up before the steps run, so it is no output by itself
        results = (recording.scale(*results, 1.0),)
    recording.seal(*results)
    return recording


@every_op
@each_compiled
def test_recorded_and_immediate_are_equal_to_the_bit(name: str, ops: Any) -> None:
    for case in drawn(name)[: None if ops is cpu else 2]:
        wanted, args = case.run(ops, case.copies()), case.copies()
        recording = recorded(case, ops, args)
        assert [bits(w) for w in case.written(args)] == [bits(w) for w in case.written(case.args)], "not run yet"
        recording.replay()
        got = (*recording.outputs, *case.written(args))
        assert [bits(r) for r in case.seen(got)] == [bits(r) for r in case.seen(wanted)]


@every_op
@each_compiled
def test_a_recording_can_be_put_on_other_arrays(name: str, ops: Any) -> None:
    """The first arrays stay as they were, and may be gone; the template holds none of them."""
    for case in drawn(name)[: None if ops is cpu else 2]:
        there, args = case.copies(), case.copies()
        wanted = case.run(ops, there)
        recording = recorded(case, ops, args)
        arrays = [value for value in args if isinstance(value, np.ndarray)]
        template = recording.template(arrays)
        first = [weakref.ref(array) for array in arrays]
        others = case.copies()
        moved = template.on([value for value in others if isinstance(value, np.ndarray)])
        moved.replay()
        assert [bits(w) for w in case.written(args)] == [bits(w) for w in case.written(case.args)]
        got = (*moved.outputs, *case.written(others))
        assert [bits(r) for r in case.seen(got)] == [bits(r) for r in case.seen(wanted)]
        del recording, args, arrays
        assert not any(reference() for reference in first)


FLOATS = [(name, operand.name) for name, op in sorted(OPS.items()) for operand in op.operands if operand.kind == "f32"]
ORDERED = {("select_rows", "scores")}
"""Which of them a NaN beats is not defined."""
LIMBS = {"attention", "attend"}
"""Ops whose CUDA kernels split vectors into limbs, so that of a vector with an infinity nothing finite is left."""


@pytest.mark.parametrize(("name", "operand"), [pair for pair in FLOATS if pair not in ORDERED])
@each_compiled
def test_what_is_not_finite_is_not_hidden(name: str, operand: str, ops: Any) -> None:
    """A NaN or an infinity leaves the compiled op where it leaves the reference, whatever it has become there."""
    number = [each.name for each in OPS[name].operands].index(operand)
    for case in drawn(name):
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
                if w.dtype.kind == "f" and ops is cuda and name in LIMBS:
                    assert not np.isfinite(g[~np.isfinite(w)]).any(), f"{bad} in {operand}"
                elif w.dtype.kind == "f":
                    np.testing.assert_array_equal(np.isfinite(g), np.isfinite(w), err_msg=f"{bad} in {operand}")


# ---- what does not fit


def operands(name: str, *kinds: str) -> list[str]:
    """Operands of an op that are arrays; of ``kinds`` "matrix" those that are matrices."""
    found = [o for o in OPS[name].operands if o.dims is not None]
    return [o.name for o in found if ("matrix" if o.kind == "matrix" else "array") in kinds]


with_arrays = pytest.mark.parametrize("name", [name for name in sorted(OPS) if operands(name, "array")])
with_matrices = pytest.mark.parametrize("name", [name for name in sorted(OPS) if operands(name, "matrix")])


def spoiled(name: str, *kinds: str) -> Iterator[tuple[Case, int, Operand]]:
    """For each such operand: cases where it is there, its place among the arguments, and its declaration."""
    for operand in operands(name, *kinds):
        place = [each.name for each in OPS[name].operands].index(operand)
        for case in drawn(name):
            if case.args[place] is not None:
                yield case, place, OPS[name].operands[place]


def refused(case: Case, ops: Any, args: list[Any], error: type[Exception] = ValueError) -> None:
    """At once and by a recording, in a line that names the op or the operand."""
    for each in (ops, ops.record()):
        if each is not None:
            with pytest.raises(error, match=rf"{case.op.name}|^({'|'.join(o.name for o in case.op.operands)})\b"):
                case.run(each, args)


def larger(case: Case, value: Any, axis: int) -> Any:
    """The operand with one more along an axis; of a matrix, one more block."""
    if not isinstance(value, Matrix):
        return np.pad(value, [(0, int(each == axis)) for each in range(value.ndim)])
    shape = [*value.data.shape[:-2], value.rows, value.cols]
    shape[axis] += COLUMNS.get(case.format, 1) if axis == len(shape) - 1 else 1
    *experts, rows, cols = shape
    return matrix(value.fmt, rows, cols, *experts)


@every_op
@every_backend
def test_wrong_sizes_raise(name: str, ops: Any) -> None:
    """One more or one less along every axis, where the declaration then has no solution."""
    for case, place, declared in spoiled(name, "array", "matrix"):
        good = case.args[place]
        assert case.fits()
        for axis in range(len(case.shape(declared))):
            smaller = [np.delete(good, 0, axis)] if not isinstance(good, Matrix) and good.shape[axis] else []
            for value in (larger(case, good, axis), *smaller):
                case.args[place] = value
                if not case.fits():
                    refused(case, ops, case.copies())


@every_op
@every_backend
def test_wrong_ranks_raise(name: str, ops: Any) -> None:
    for case, place, _ in spoiled(name, "array", "matrix"):
        good = case.args[place]
        if isinstance(good, Matrix):
            other = good.data[0] if good.experts else good.data[None]
            wrong = [Matrix(good.fmt, np.ascontiguousarray(other), good.rows, good.cols)]
        else:
            wrong = [good[None], *([good[0]] if good.ndim > 1 and len(good) else [])]
        for value in wrong:
            case.args[place] = value
            if not case.fits():
                refused(case, ops, case.copies())


@with_arrays
@every_backend
def test_wrong_types_raise(name: str, ops: Any) -> None:
    for case, place, declared in spoiled(name, "array"):
        good = case.args[place]
        other = {"f32": np.float64, "any": np.float64, "i32": np.int64, "i64": np.int32}[declared.kind]
        for value in (good.astype(other), 3, *([] if declared.optional else [None])):
            case.args[place] = value
            with pytest.raises(TypeError, match=declared.name):
                case.run(ops, case.copies())


@with_matrices
@every_backend
def test_weights_that_are_none_raise(name: str, ops: Any) -> None:
    for case, place, declared in spoiled(name, "matrix"):
        w = case.args[place]
        for value in (np.zeros((w.rows, w.cols), np.float32), None):
            case.args[place] = value
            with pytest.raises(TypeError, match=declared.name):
                case.run(ops, case.copies())
        more = Matrix(w.fmt, w.data, w.rows + 1, w.cols)
        signed = Matrix(w.fmt, w.data.view(np.int8), w.rows, w.cols)
        gaps = Matrix(w.fmt, np.repeat(w.data, 2, axis=-1)[..., ::2], w.rows, w.cols)
        for value in (more, signed) if ops is cuda else (more, signed, gaps):  # what is placed there has no gaps
            case.args[place] = value
            with pytest.raises(ValueError, match=f"{declared.name}.*weights|rows are uint8"):
                case.run(ops, case.copies())


PLAIN_SIZES = [
    (name, o.name) for name, op in sorted(OPS.items()) for o in op.operands if o.name in SIZES and o.dims is None
]


@pytest.mark.parametrize(("name", "argument"), PLAIN_SIZES)
@every_backend
def test_numbers_are_refused_exactly_where_the_declaration_does(name: str, argument: str, ops: Any) -> None:
    place = [each.name for each in OPS[name].operands].index(argument)
    for case in drawn(name):
        good = case.args[place]
        steps = [-1, 0, 1, 63, 64, 65] + [size + more for size in case.sizes.values() for more in (0, 1)]
        for value in sorted({*steps} - {good}):
            case.args[place] = value
            if case.fits():
                case.run(ops, case.copies())
            else:
                refused(case, ops, case.copies())


@with_arrays
@every_backend
def test_gaps_between_values_are_closed(name: str, ops: Any) -> None:
    """Except where they would have to be closed behind the caller's back: in what is written, and in recordings."""
    for case, place, declared in spoiled(name, "array"):
        wanted, args, good = case.run(ops, case.copies()), case.copies(), case.args[place]
        args[place] = np.repeat(good, 2, axis=-1)[..., ::2]
        if args[place].flags.c_contiguous:
            continue
        if declared.written:
            refused(case, ops, args)
        else:
            got = case.run(ops, args)
            assert [bits(r) for r in case.seen(got)] == [bits(r) for r in case.seen(wanted)]
            recording = ops.record()
            if recording is not None:
                with pytest.raises(ValueError, match=f"{declared.name} has gaps"):
                    case.run(recording, args)


@pytest.mark.parametrize(
    "name", [name for name, op in sorted(OPS.items()) if any(o.written and not o.optional for o in op.operands)]
)
@pytest.mark.parametrize("ops", [reference, cpu], ids=["reference", "cpu"])
def test_what_is_written_shares_no_memory_with_what_is_read(name: str, ops: Any) -> None:
    written = next(number for number, each in enumerate(OPS[name].operands) if each.written)
    for case, place, _ in spoiled(name, "array"):
        if place != written:
            args = case.copies()
            memory = np.zeros(max(args[place].nbytes, args[written].nbytes), np.uint8)
            for each in (place, written):
                args[each] = memory[: args[each].nbytes].view(args[each].dtype).reshape(args[each].shape)
            refused(case, ops, args)


@pytest.mark.cuda
def test_what_is_written_shares_no_memory_on_a_device() -> None:
    ops = cuda.backend
    rows, at = ops.array(8, 4), ops.upload(np.zeros(1, np.int64))
    ops.store_rows(ops.array(2, 4), rows, at)
    with pytest.raises(ValueError, match="rows and x share memory"):
        ops.store_rows(rows[6:], rows[:7], at)
    ops.store_rows(rows[6:], rows[:6], at)


LIMITED = [(name, o.name) for name, op in sorted(OPS.items()) for o in op.operands if o.limits]


@pytest.mark.parametrize(("name", "operand"), LIMITED)
@every_backend
def test_numbers_out_of_range_raise(name: str, operand: str, ops: Any) -> None:
    """At once, in a recording and in one on other arrays, which then work again once the number is mended."""
    place = [each.name for each in OPS[name].operands].index(operand)
    declared = OPS[name].operands[place]
    cases = [case for case in drawn(name) if case.args[place] is not None and case.args[place].size]
    assert cases
    for case in cases:
        if name == "attention" and operand in ("comp_count", "selected"):
            if case.args[4] is None or (operand == "comp_count" and case.args[6] is not None):
                continue  # not looked at
        wanted, args = case.run(ops, case.copies()), case.copies()
        recordings = [] if ops is reference else [recorded(case, ops, args)]
        if recordings:
            arrays = [value for value in args if isinstance(value, np.ndarray)]
            recordings.append(recordings[0].template(arrays).on(arrays))
        good = args[place].copy()
        least, greatest = declared.limits or ("", "")
        for bad in ([case.size(least) - 1] if least else []) + ([case.size(greatest) + 1] if greatest else []):
            args[place].flat[int(case.rng.integers(good.size))] = bad
            with pytest.raises(IndexError, match=f"{name}.*{operand} outside"):
                case.run(ops, args)
            for recording in recordings:
                with pytest.raises(IndexError):
                    recording.replay()
            args[place][...] = good
            for recording in recordings:
                recording.replay()
                assert [bits(r) for r in recording.outputs] == [bits(r) for r in wanted[: len(recording.outputs)]]
