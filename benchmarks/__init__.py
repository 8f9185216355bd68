"""Speed of kernels and engine against what the machine can do, and against other programs.

python -m benchmarks.cpu     every figure of the table in docs/evidence/perf.md, with its bar
python -m benchmarks.rows    row kernels alone, all formats and roundings
python -m benchmarks.profile where the time of a decoded token goes, step by step
python -m benchmarks.arms    whether ds4-bench can be trusted: its overhead, false and missed verdicts

report, timing     rows with bars; interleaved rounds of all arms
costs, depth       operations a token needs; sessions with a long past that was never computed
matvec, whole, growth, start, paging, peers      the figures
worker             one engine (ours, llama.cpp) in a process of its own, driven over a pipe
"""
