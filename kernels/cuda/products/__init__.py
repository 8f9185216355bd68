"""Matrix products: ``dispatch`` chooses the kernel for a format, a rounding of inputs and a number of tokens."""
