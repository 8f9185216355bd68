"""Sessions: one mutable timeline of tokens each, with caches, logits, snapshots and saved payloads."""
