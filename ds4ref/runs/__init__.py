"""The record of measurements: where a figure came from, how certain it is, and a store for it.

provenance   command, commit, machine, versions, engine, model: the facts of a run
store        every run of every tool in one SQLite file
fanout       units of a large job over threads or Dask workers, their runs in the store
results      results CSVs of ds4-bench as rows
spread       medians, bands, quantiles: what was seen
stats        intervals and tests: what it says about the next time
drift        whether the machine changed while it was measured

Nothing here knows a tool.
"""
