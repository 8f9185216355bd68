"""Copies between strided arrays of up to four axes."""

from __future__ import annotations

from ..driver.arrays import DeviceArray
from ..driver.grids import per_value
from ..driver.launch import Launch
from ..driver.shim import cuda

AXES = 4


@per_value()
def strided(out, x, size, n1, n2, n3, t0, t1, t2, t3, s0, s1, s2, s3):
    """Copy one value per thread, at index (i0, i1, i2, i3) of four axes; n1, n2, n3 are the sizes of the last three, t0
    .. t3 the strides of ``out``, s0 .. s3 those of ``x``, all in values."""
    for i in range(cuda.grid(1), size, cuda.gridsize(1)):
        i3, rest = i % n3, i // n3
        i2, rest = rest % n2, rest // n2
        i1, i0 = rest % n1, rest // n1
        out[i0 * t0 + i1 * t1 + i2 * t2 + i3 * t3] = x[i0 * s0 + i1 * s1 + i2 * s2 + i3 * s3]


def _axes(array: DeviceArray) -> tuple[list[int], list[int]]:
    """Return the sizes and strides (in values) of an array, with axes of size 1 added to make AXES axes."""
    if array.ndim > AXES:
        raise ValueError(f"arrays of more than {AXES} axes cannot have gaps between their values")
    missing = AXES - array.ndim
    strides = [stride // array.dtype.itemsize for stride in array.strides]
    return [1] * missing + list(array.shape), [0] * missing + strides


def _reach(array: DeviceArray) -> DeviceArray:
    """Return all memory from the first value of ``array`` to its last, as one axis."""
    items = [(length - 1) * stride for length, stride in zip(array.shape, array.strides, strict=True)]
    if any(item < 0 for item in items):
        raise ValueError("arrays with negative strides are not supported")
    return DeviceArray(array.buffer, (sum(items) // array.dtype.itemsize + 1,), array.dtype, array.offset)


def copy(to: DeviceArray, x: DeviceArray) -> Launch:
    """Make the launch that copies ``x`` to ``to``; they have the same shape and type, and at least one value."""
    shape, target_strides = _axes(to)
    _, source_strides = _axes(x)
    return Launch(strided, [_reach(to)], [_reach(x)], [to.size, *shape[1:], *target_strides, *source_strides])
