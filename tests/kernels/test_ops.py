"""Every op of every backend, driven from its declaration in ``ds4ref.kernels.ops``.

Operands are those of ``op_cases``. What holds for all ops is held against all of them: results as declared, operands
left alone, the compiled ops equal to the reference and recorded ones equal to immediate ones. What one op in
particular must do is in ``test_cpu_ops`` and ``test_pitfalls``.
"""

from __future__ import annotations

import inspect
import resource
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ds4ref.kernels.cuda.backend
from ds4ref.kernels.cpu import CPU
from ds4ref.kernels.cpu.backend import Recorded
from ds4ref.kernels.formats import Matrix
from ds4ref.kernels.ops import OPS, Backend, Operand
from ds4ref.kernels.reference import Reference

from . import cpu, reference
from .cuda.device import cuda
from .op_cases import COLUMNS, DRAWS, EXACT, KINDS, SIZES, Case, bits, drawn, sizable
from .test_cpu_ops import assert_close, matrix, waits

every_op = pytest.mark.parametrize("name", sorted(OPS))
every_backend = pytest.mark.parametrize("ops", [reference, cpu, cuda], ids=["reference", "cpu", "cuda"])
each_compiled = pytest.mark.parametrize("ops", [cpu, cuda], ids=["cpu", "cuda"])


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
    assert waits(recording).tolist() == [1, 0, 0, 0], "one phase, and the reader in its tail"


@every_op
def test_compiled_ops_agree_with_the_reference(name: str) -> None:
    """The CPU's; those of CUDA: ``cuda/test_compiled.py``."""
    for case, tolerance in [*((case, 6e-6) for case in drawn(name)), *((case, 1e-5) for case in sizable(name))]:
        got, wanted = (case.seen(case.run(each, case.copies())) for each in (cpu, reference))
        for g, w in zip(got, wanted, strict=True):
            if w.dtype.kind != "f" or name in EXACT:
                np.testing.assert_array_equal(g, w)
            else:
                assert_close(g, w, tolerance)


@every_op
def test_results_do_not_depend_on_the_number_of_threads(name: str) -> None:
    for case in sizable(name) or drawn(name)[:2]:
        wanted = case.seen(case.run(CPU(1), case.copies()))
        for threads in (2, 3, 8):
            got = case.seen(case.run(CPU(threads), case.copies()))
            assert [bits(r) for r in got] == [bits(r) for r in wanted], threads


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
            with pytest.raises(ValueError, match=f"{declared.name}.*weights|rows must be uint8"):
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


@pytest.mark.skipif(sys.platform != "linux", reason="reads the resident memory from /proc")
def test_caches_return_their_memory_and_hold_no_pages_that_they_do_not_use() -> None:
    """Once a large array was freed, glibc would keep those of a megabyte in its heap: a server grew to 900 MB with a
    limit of 64 MB."""
    ops = reference
    np.ones(31 << 20, np.uint8)
    before = resident()
    arrays = [ops.array(1 << 20, dtype=np.uint8) for _ in range(60)]
    for array in arrays:
        array[:] = 1
    small = [np.ones(1000) for _ in range(100)]  # memory after the arrays stays in use
    assert resident() > before + 50
    del arrays, array
    assert resident() < before + 10 and small


def resident() -> float:
    """Resident memory of this process in MB."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 1e6


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
