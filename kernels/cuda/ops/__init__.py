"""The ops of the CUDA backend: each allocates what it needs and launches kernels of ``rows`` or ``products``."""
