"""Recordings: the kernel launches of a token's pass, joined where possible, with memory assigned to their results, and
captured as one CUDA graph."""
