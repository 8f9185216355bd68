"""Attacks on parsers, files, sequences and the server, counted (docs/evidence/robustness.md)."""
