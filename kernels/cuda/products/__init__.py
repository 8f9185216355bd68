"""Matrix products: ``matvec`` and ``plain`` for few inputs, ``matmat`` for many; ``ops.products`` chooses."""
