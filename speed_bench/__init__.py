"""ds4-bench: throughput against context depth.

frontier    which depths are measured
sweep       the measurement itself, on anything that behaves like a session
prompt      the text that is walked
results     the CSV: columns, reading, writing
plot        CSV to SVG and PNG
facts       what a result says about where it came from
cli         the command
"""
