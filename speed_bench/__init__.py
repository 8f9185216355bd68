"""ds4-bench: throughput against context depth, and under load.

    from speed_bench import Plan, run

plan          what is to be measured: lanes, depths, tests, load, repetitions
runner        one run over sources in turn, kept row by row
sources       lanes opened as something that walks: local, remote (endpoint, load), binary
sweep, probes the timed windows of a session
repetitions   how many there are to be
prompt        the text that is walked
columns       every column of a result, and what repetitions make of it
samples       a measured row as plain data
output        files, tables, what is said at the end; formats, table, verdict, results, plot, loadplot
model, peaks  what a machine could do at best; published
options, cli  the command
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .plan import Lane, Load, Plan, Shape
    from .probes import Probe
    from .runner import Measurement, run

__all__ = ["Lane", "Load", "Plan", "Probe", "Measurement", "Shape", "run"]
_WHERE = {"Probe": "probes", "Measurement": "runner", "run": "runner"}


def __getattr__(name: str) -> Any:
    """What is exported, loaded when it is used: a command that prints its help needs none of it."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f".{_WHERE.get(name, 'plan')}", __name__), name)
