"""Model files: reading (``gguf``), meaning (``tensors``), writing (``writer``) and describing (``report``)."""
