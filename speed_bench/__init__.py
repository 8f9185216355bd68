"""ds4-bench: measures throughput against context depth, and under load.

    from ds4ref.speed_bench import Plan, run

plan          what to measure: lanes (targets), depths, tests, load, repetitions
runner        one run over all lanes in turn, stored row by row
sources       open lanes as sources of samples: local, remote (endpoint, load), binary
sweep, probes the timed windows of a session
waiting       what a busy machine does to a measurement
prompt        the text that is prefilled
columns       every column of a result, and how repetitions are combined
samples       a measured row as plain data
output        files, tables, final messages; formats, table, verdict, results, plot, loadplot
model, peaks  best speeds that a machine allows; published
options, cli  the command
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .plan import Lane, Load, Plan, RequestShape
    from .probes import Probe
    from .runner import Measurement, run

__all__ = ["Lane", "Load", "Plan", "Probe", "Measurement", "RequestShape", "run"]
_WHERE = {"Probe": "probes", "Measurement": "runner", "run": "runner"}


def __getattr__(name: str) -> Any:
    """Import an exported name on first use, so that a command that only prints its help loads no other module."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f".{_WHERE.get(name, 'plan')}", __name__), name)
