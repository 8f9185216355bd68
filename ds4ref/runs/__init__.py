"""The record of measurements: where a figure came from, how certain it is, and a store for it.

provenance   command, commit, machine, versions, engine, model: the facts of a run
store        every run of every tool in one SQLite file
fanout       units of a large job over threads or Dask workers, their runs in the store
evals        logs of ds4-eval as runs
scored       scores of graded runs, and the changes between two runs
speed        speeds of two runs at equal work
results      results CSVs of ds4-bench as rows
spread       medians, bands, quantiles: the spread of the measured values
stats        confidence intervals and tests
drift        whether the machine changed while it was measured

These modules import no tool.
"""
