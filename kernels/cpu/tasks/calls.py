"""Calls of Python functions from a job (``cpu.ops.HostCall``)."""

from __future__ import annotations

from .. import tasktable as t
from .lang import call_address
from .registry import body

call_function = call_address(3)


@body(t.CALL)
def call_python(args, first, last, thread):
    """Call a C function, which wraps a Python one, with the address, rows and columns of ids; one item."""
    call_function(args.function, args.ids, args.rows, args.width)
