"""Compute, and nothing but compute: arrays in, arrays out.

``formats`` holds the block layouts, ``reference`` the readable NumPy truth, ``cpu`` the Numba kernels. A backend is
a module that offers the op names of ``kernels.reference``; nothing here knows about files, sessions or text.
"""

DISTRIBUTION = "ds4ref"
"""Another project's package has this name, too (``ds4ref.backends.check_kernels``)."""
