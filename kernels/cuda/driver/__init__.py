"""The GPU below the kernels: devices, memory, arrays, launches, and what ``numba.cuda`` lacks."""
