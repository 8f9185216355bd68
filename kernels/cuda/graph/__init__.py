"""Recordings: the launches of a token, joined, laid out in memory and captured as one CUDA graph."""
