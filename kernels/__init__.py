"""Compute, and nothing but compute: arrays in, arrays out.

``formats`` holds the block layouts, ``reference`` the readable NumPy truth, ``cpu`` the Numba kernels. A backend is
a module that offers the op names of ``ds4ref.kernels.reference``; nothing here knows about files, sessions or text.
"""
