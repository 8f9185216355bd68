"""Kernels for NVIDIA GPUs, written with numba.cuda."""
