"""Recordings: the launches of a token, shared, joined, laid out in branches and captured as one CUDA graph."""
