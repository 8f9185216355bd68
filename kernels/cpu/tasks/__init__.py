"""Compiled code of the CPU backend. Imported only to compile it; running needs neither these modules nor Numba."""
