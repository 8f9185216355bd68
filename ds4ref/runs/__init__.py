"""The record of measurements: where a figure came from, how certain it is, and a store for it.

A run is one execution of a tool (a benchmark, an evaluation, ...): its metadata, and its results as rows.

provenance   the metadata of a run: command, commit, machine, versions, engine, model
store        a database file for the runs of all tools
columns      all columns of a benchmark's rows, and how repetitions are combined
results      reads benchmark results from CSV files
evals        turns logs of ds4-eval into runs
scored       scores of graded runs
thinking     checks whether answers show thinking, as they should by the settings
compare      compares two runs: better, worse, the same, or unclear
speeds       compares the speeds of two benchmark runs
pairs        compares two graded runs question by question
statements   the results of comparisons as data
words        the results of comparisons as sentences
spread       medians, bands, quantiles: the spread of the measured values
stats        confidence intervals and tests
drift        detects whether the machine's speed changed while it was measured
warnings     reasons not to rely on a row

These modules do not import the tools that use them.
"""
