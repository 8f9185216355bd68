"""Compute kernels: arrays in, arrays out.

``formats`` holds the block layouts of quantized weights, ``reference`` readable NumPy implementations, ``cpu`` kernels
compiled with Numba, ``cuda`` CUDA kernels. A backend implements the ops declared in ``ds4ref.kernels.ops``; nothing
here knows about files, sessions or text.
"""
