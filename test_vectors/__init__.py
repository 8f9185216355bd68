"""Log probability vectors: capture, check, compare and diagnose any engine (``ds4-vectors``, vectors.md)."""
