"""Training of the embedded model (extra ``train``: torch): shape, module, data, loop, export."""
