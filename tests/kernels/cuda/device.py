"""A backend whose arrays live elsewhere, as tests see it: operands are copied there, results back.

Operands with gaps between their values have gaps there, too. A recording's operands are copied anew before each replay,
so that a test may change them in between, and what it writes in place comes back after it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ds4ref.kernels.formats import Matrix
from ds4ref.kernels.ops import OPS


class OnDevice:
    """``open_backend`` is called at first use."""

    def __init__(self, open_backend: Callable[[], Any]):
        self._open = open_backend
        self._backend: Any = None

    @property
    def backend(self) -> Any:
        """The backend itself."""
        if self._backend is None:
            self._backend = self._open()
        return self._backend

    def there(self, value: Any) -> Any:
        """An operand on the device."""
        if isinstance(value, Matrix):
            return self.backend.place(value)
        if not isinstance(value, np.ndarray):
            return value
        if value.flags.c_contiguous:
            return self.backend.upload(value)
        return self.backend.upload(np.repeat(value, 2, axis=-1))[..., ::2]

    def record(self) -> RecordedOnDevice:
        return RecordedOnDevice(self, self.backend)

    def __getattr__(self, name: str) -> Any:
        if name not in OPS:
            raise AttributeError(name)

        def call(*args: Any) -> Any:
            backend = self.backend
            placed = [self.there(value) for value in args]
            out = getattr(backend, name)(*placed)
            backend.synchronize()
            for operand, value, array in zip(OPS[name].operands, args, placed, strict=False):
                if operand.written and value is not None:
                    value[...] = backend.host(array)
            if isinstance(out, tuple):
                return tuple(backend.host(part) for part in out)
            return None if out is None else backend.host(out)

        return call


class RecordedOnDevice:
    """A recording of such a backend."""

    def __init__(self, ops: OnDevice, backend: Any):
        self._ops, self._backend, self.recording = ops, backend, None
        self._operands: list[tuple[np.ndarray, Any, bool]] = []
        self.recording = backend.record()
        self.outputs: list[np.ndarray] = []

    def __getattr__(self, name: str) -> Any:
        if name not in OPS:
            raise AttributeError(name)

        def call(*args: Any) -> Any:
            placed = []
            for operand, value in zip(OPS[name].operands, args, strict=False):
                array = self._ops.there(value)
                if operand.written and isinstance(value, np.ndarray) and value.flags.c_contiguous:
                    array = self._backend.array(*value.shape, dtype=value.dtype)  # no input, which would be refilled
                placed.append(array)
                if isinstance(value, np.ndarray):
                    self._operands.append((value, array, operand.written))
            return getattr(self.recording, name)(*placed)

        return call

    def seal(self, *outputs: Any) -> None:
        self.recording.seal(*outputs)  # type: ignore[attr-defined]

    def template(self, arrays: Sequence[np.ndarray]) -> TemplateOnDevice:
        return TemplateOnDevice(self, arrays)

    def replay(self) -> None:
        for value, array, _ in self._operands:
            self._backend.fill(array, value)
        self.recording.replay()  # type: ignore[attr-defined]
        for value, array, written in self._operands:
            if written:
                value[...] = self._backend.host(array)
        self.outputs = [self._backend.host(out) for out in self.recording.outputs]  # type: ignore[attr-defined]


class TemplateOnDevice:
    """A template of such a recording."""

    def __init__(self, recorded: RecordedOnDevice, arrays: Sequence[np.ndarray]):
        self._ops, self._backend = recorded._ops, recorded._backend
        placed = {id(value): (array, written) for value, array, written in recorded._operands}
        self._written = [placed[id(value)][1] for value in arrays]
        self._template = recorded.recording.template([placed[id(value)][0] for value in arrays])  # type: ignore

    def on(self, arrays: Sequence[np.ndarray]) -> RecordedOnDevice:
        made = RecordedOnDevice(self._ops, self._backend)
        placed = [self._backend.moved(value) for value in arrays]
        made.recording = self._template.on(placed)
        made._operands = list(zip(arrays, placed, self._written, strict=True))
        return made


def _open_cuda() -> Any:
    from ds4ref.kernels.cuda import CUDA

    return CUDA()


cuda = OnDevice(_open_cuda)
