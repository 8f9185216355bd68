"""Log probability vectors: capture, check, compare, diagnose, for any engine.  ``ds4-vectors``, docs/vectors.md."""
