"""Mistral, one page of mathematics: Llama whose tokens may look back over a window only (Jiang et al. 2023).

As ``archs.llama``, with W tokens of ``sliding_window``:

    o_t = sum_s softmax_s(q_t . k_s / sqrt(head_dim)) v_s       over t - W < s <= t, in every layer

Through n layers a token depends on up to n (W - 1) tokens before it. Version 0.1 has a window of 4096, which is also
what a config without the key means; later versions say null: no window. In GGUF files the architecture is llama, and
the window its ``llama.attention.sliding_window``. The cache keeps every row, so a session rewinds to any position.

This folder holds the layout of Hugging Face's checkpoints; the family is ``archs.llama``'s.
"""
