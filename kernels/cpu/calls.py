"""Python functions called in the middle of a job, with expert ids that the job has computed."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence

import numpy as np

from . import tasktable as t
from .abi import Step
from .steps import Steps

_C_FUNCTION = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 3)
_MOST = 2
"""Maximum number of arrays that a call follows, and of those that it precedes."""


class HostCall:
    """A Python function as compiled code calls it, ``function(ids)`` with int32 (T, K) that are valid until it returns.

    It must not raise: nobody is there to catch it. Keep the object as long as recordings that call it.
    """

    def __init__(self, function: Callable[[np.ndarray], None]):
        def entry(ids: int, rows: int, width: int) -> None:
            values = (ctypes.c_int32 * (rows * width)).from_address(ids)
            function(np.frombuffer(values, np.int32).reshape(rows, width))

        self._kept = _C_FUNCTION(entry)
        self.address = ctypes.cast(self._kept, ctypes.c_void_p).value or 0


class CallOps(Steps):
    """Calls of Python functions."""

    def call(
        self, function: HostCall, ids: np.ndarray, after: Sequence[np.ndarray] = (), before: Sequence[np.ndarray] = ()
    ) -> None:
        """Call ``function`` with ids (T, K) int32, after the arrays ``after`` are computed and before ``before`` are
        read, at most two each. Calls before the same array keep their order."""
        first, table = ([*map(self.at, arrays), *[0] * _MOST][:_MOST] for arrays in (after, before))
        self.run([Step(t.CALL, 1, 1, (function.address, self.at(ids), *ids.shape, *first, *table))])
