"""The record of measurements: where a figure came from, how certain it is, and a store for it.

provenance   command, commit, machine, versions, engine, model: the facts of a run
store        every run of every tool in one SQLite file
columns      every column of a bench row, and how repetitions are combined; results: CSVs as rows
evals        logs of ds4-eval as runs; scored: scores of graded runs; thinking: whether answers show it
compare      two runs: better, worse, the same, unclear; speeds and pairs: of bench runs, of graded ones
statements   what comparisons state, as data; words: as sentences
spread       medians, bands, quantiles: the spread of the measured values
stats        confidence intervals and tests
drift        whether the machine changed while it was measured
warnings     reasons not to rely on a row

These modules import no tool.
"""
