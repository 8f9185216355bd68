"""Matrix products: ``dispatch`` chooses the kernel for a format, an activation rounding and a number of tokens."""
