"""Speed of kernels and engine, compared with the machine's limits and with other programs.

python -m benchmarks.cpu     every figure of the table in docs/evidence/perf.md, with its bar
python -m benchmarks.rows    row kernels alone, all formats and roundings
python -m benchmarks.arm     what rows should take on AArch64 machines, estimated
python -m benchmarks.profile where the time of a decoded token goes, step by step
python -m benchmarks.threads how a token scales with threads, what a barrier costs, what more threads would give
python -m benchmarks.skills  what the embedded model can do; what every mistake and every quantization costs it
python -m benchmarks.experts decode of a model larger than memory, against plain mapping and the disk's rate

report, timing     rows with bars; interleaved rounds of all arms
costs, depth       operations per token; sessions at depth whose cache rows were made up instead of computed
matvec, whole, growth, start, paging, peers      sections of the table
worker             one engine (ours, llama.cpp) in a process of its own, driven over a pipe
"""
