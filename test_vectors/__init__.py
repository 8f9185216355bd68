"""Capture, check, compare and diagnose any engine's log probabilities (``ds4-vectors``, docs/reference/vectors.md)."""
