"""The forward pass of DeepSeek V4, in reading order:

hooks, chunk, rope, hyper_connections, compressor, indexer, attention, moe, head, forward.

Written once over a table of ops (``kernels.reference`` or ``kernels.cpu``) and once for all numerics modes: a mode
switches roundings at fixed points, it never forks the pass.
"""
