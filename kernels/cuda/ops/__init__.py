"""The op table of the CUDA backend, and ``steps``, which its classes are written with."""
