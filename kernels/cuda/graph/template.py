"""Templates: what a recording launches, without the addresses of its arrays, kept so that other sessions of the same
model need not record the pass again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ..driver.arrays import DeviceArray
from ..driver.launch import Launch
from ..driver.memory import Buffer, Slab


class Plan(NamedTuple):
    """What a recording launches, and the offsets of its results in the memory that they will get.

    places           buffers of intermediate results with their offsets in one block of memory
    nbytes           size of that block
    outputs, kept    results to copy to the host at each replay, and on demand, as the ops returned them
    """

    launches: list[Launch]
    places: list[tuple[Buffer, int]]
    nbytes: int
    outputs: list[DeviceArray]
    kept: list[DeviceArray]

    def arrays(self) -> Iterator[DeviceArray]:
        """Yield the arrays of all launches, outputs and kept results."""
        for launch in self.launches:
            yield from launch.writes
            yield from launch.reads
        yield from (*self.outputs, *self.kept)

    def on(self, buffers: Mapping[int, Buffer]) -> Plan:
        """Return the same plan with other buffers in place of some: ``buffers`` maps the ``id`` of a buffer to its
        replacement."""
        moved: dict[int, DeviceArray] = {}

        def there(array: DeviceArray) -> DeviceArray:
            buffer = buffers.get(id(array.buffer))
            if buffer is None:
                return array
            if id(array) not in moved:
                moved[id(array)] = DeviceArray(buffer, array.shape, array.dtype, array.offset, array.strides)
            return moved[id(array)]

        launches = [
            Launch(one.function, [*map(there, one.writes)], [*map(there, one.reads)], one.numbers, None, one.matrices)
            for one in self.launches
        ]
        places = [(buffers[id(buffer)], offset) for buffer, offset in self.places]
        return Plan(launches, places, self.nbytes, [*map(there, self.outputs)], [*map(there, self.kept)])


class Template:
    """A sealed recording without its arrays, from which other sessions of a model make their recordings.

    Recording a pass of 43 layers takes Python half a second: ops check arguments, launches are joined, memory is
    assigned. None of that depends on the addresses of arrays. A template keeps the plan with empty buffers in place of
    those of results, inputs and replaced arrays, so it keeps none of them alive and takes no device memory.
    """

    def __init__(self, plan: Plan, slab: Slab, arrays: Sequence[DeviceArray], make: Callable[[], Any]):
        """Make a template of a recording's plan.

        slab: the recording's small inputs
        arrays: the arrays that others will replace
        make: function that returns an empty recording
        """
        self._make = make
        self._slab = slab.host[: slab.used].copy()
        places = {id(buffer) for buffer, _ in plan.places} | {id(out.buffer) for out in (*plan.outputs, *plan.kept)}
        stand_ins: dict[int, Buffer] = {}

        def stand_in(array: DeviceArray) -> Buffer:
            buffer = array.buffer
            return stand_ins.setdefault(id(buffer), Buffer(None, buffer.nbytes, buffer.start))

        self._replaced = [(stand_in(array), array.buffer.slab is slab) for array in arrays]
        """The empty buffer in place of each replaced array, and whether that array is an input."""
        if any(array.offset or array.nbytes != array.buffer.nbytes for array in arrays):
            raise ValueError("an array that is replaced must be all of its buffer")
        inputs = {id(array.buffer): stand_in(array) for array in plan.arrays() if array.buffer.slab is slab}
        self._inputs = [*inputs.values()]
        made = {id(array.buffer): stand_in(array) for array in plan.arrays() if id(array.buffer) in places}
        self._places = [*made.values()]
        self._plan = plan.on(stand_ins)

    def on(self, arrays: Sequence[DeviceArray]) -> Any:
        """Return a recording of the same launches on ``arrays``, which must have the same order, shapes and dtypes as
        those given to ``Recording.template``. Those that replace inputs become inputs of the new recording and keep
        their values."""
        made = self._make()
        slab = made.slab
        slab.take(self._slab)
        buffers = {id(one): Buffer(None, one.nbytes) for one in self._places}
        for one in self._inputs:
            buffers[id(one)] = Buffer(slab.block, one.nbytes, one.start, slab=slab)
        for array, (one, is_input) in zip(arrays, self._replaced, strict=True):
            if is_input:
                values = made.owner.host(array)
                array.move(buffers.setdefault(id(one), Buffer(slab.block, one.nbytes, one.start, slab=slab)))
                slab.write(array.buffer, 0, values)
            else:
                buffers[id(one)] = array.buffer
        made.lay_out(self._plan.on(buffers))
        return made
