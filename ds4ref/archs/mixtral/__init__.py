"""Mixtral, one page of mathematics: Mistral with experts for its feed-forward (Jiang et al. 2024).

As ``archs.llama`` up to the second half of a layer, where K of E experts take the place of one feed-forward:

    h = norm(x)
    p = softmax(h Wr^T)                                         over the E experts
    S = the K experts of largest p                              ties to the lower number
    x = x + sum_(e in S) p_e / (sum_S p) * (silu(h Wg_e^T) * (h Wu_e^T)) Wd_e^T

The quotient is the softmax of the K chosen logits alone, which is what is computed. An expert is as wide as
``intermediate_size``; 8x7B and 8x22B take K = 2 of E = 8. In GGUF files the architecture is llama, with
``llama.expert_count``. A window is read as Mistral's, but absent it is none; rope's base is 1e6 unless stated.

This folder holds the layout of Hugging Face's checkpoints; the family is ``archs.llama``'s.
"""
