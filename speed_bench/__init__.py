"""ds4-bench: throughput against context depth.

frontier    which depths are measured
sweep       the measurement itself, on anything that behaves like a session
prompt      the text that is walked
probes      single tests, as llama-bench names them
rounds      repetitions; arms and lists in turn
endpoint    the sweep as an endpoint's client sees it
binary      the sweep of a ds4-bench binary
samples     what a row is, and what is left of repetitions
drift       whether the machine changed meanwhile
results     the CSV: columns, reading, writing
plot        CSV to SVG and PNG
facts       what a result says about where it came from
model       what a machine could do at best
bench, remote   one run on the local engine, on other targets
output      files, tables, the run store
cli         the command
"""
