"""CUDA kernels, recordings and commands."""
