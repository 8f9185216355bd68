"""Sessions: one mutable sequence of tokens each, with caches, logits, snapshots and saved payloads."""
