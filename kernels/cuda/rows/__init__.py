"""Kernels on rows and caches: norms, attention, the indexer, hyper-connections, routing, rounding."""
