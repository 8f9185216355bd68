"""A small Llama that was really trained, in seconds, as a folder of Hugging Face: weights whose errors matter.

    folder = trained(tmp_path / "llama")       config.json, model.safetensors, tokenizer.json, a chat template

It reads ``ds4ref.nano.prose`` in a byte-level vocabulary trained on it; rows are multiples of 256, so that every format
of llama.cpp fits. ``HELD_OUT`` is prose that it has not seen.
"""

from __future__ import annotations

import json
from pathlib import Path

from ds4ref.nano.prose import prose

from .conftest import missing

VOCAB, DIM, FF, LAYERS, HEADS, SHARED, CONTEXT = 768, 256, 512, 3, 8, 4, 512
WINDOW, BATCH, STEPS = 64, 8, 250
TEXT = prose(60_000, 1)
HELD_OUT = prose(4_000, 99)
END = "<|end|>"
TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}" + END + "{% endfor %}"


def vocabulary(folder: Path) -> None:
    """tokenizer.json and tokenizer_config.json."""
    import tokenizers
    from tokenizers import decoders, models, pre_tokenizers, trainers

    made = tokenizers.Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=VOCAB - 8, initial_alphabet=alphabet, show_progress=False)
    made.train_from_iterator([TEXT], trainer)
    made.add_special_tokens([END])
    made.save(str(folder / "tokenizer.json"))
    settings = {"eos_token": END, "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def trained(folder: Path) -> Path:
    """Make ``folder``. Skips where torch or transformers is not installed."""
    try:
        import tokenizers
        import torch
        from transformers import LlamaConfig, LlamaForCausalLM
    except ImportError:
        missing("transformers is not installed (pip install 'ds4ref[oracle]')")
    folder.mkdir()
    vocabulary(folder)
    ids = torch.tensor(tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json")).encode(TEXT).ids)
    torch.manual_seed(0)
    end = VOCAB - 8
    model = LlamaForCausalLM(LlamaConfig(
        hidden_size=DIM, intermediate_size=FF, num_hidden_layers=LAYERS, num_attention_heads=HEADS,
        num_key_value_heads=SHARED, vocab_size=VOCAB, rms_norm_eps=1e-5, tie_word_embeddings=False,
        max_position_embeddings=CONTEXT, bos_token_id=None, eos_token_id=end, pad_token_id=None,
    ))  # fmt: skip
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01)
    losses = []
    for _ in range(STEPS):
        starts = torch.randint(0, len(ids) - WINDOW, (BATCH,))
        batch = torch.stack([ids[start : start + WINDOW] for start in starts])
        optimizer.zero_grad()
        loss = model(batch, labels=batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    assert sum(losses[-20:]) / 20 < 0.6 * losses[0], "it learned nothing"
    model.save_pretrained(folder)
    return folder
