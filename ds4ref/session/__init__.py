"""One mutable timeline of tokens: caches, logits, snapshots, saved payloads."""
