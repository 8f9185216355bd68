"""Keys of a GGUF tokenizer that an engine may have wrong: what becomes of a prompt that was sent as text.

Each is named by its key, as the constants of the model are (``ds4ref.variants.dense``). They are tried on tokens that
an engine generated after a prompt.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from ds4ref.errors import Ds4Error
from ds4ref.text.chat import text_start

from .prompts import PromptBug, _texts

KEY = "tokenizer.ggml."
PRES = ("gpt-2", "smollm", "llama-bpe", "qwen2", "default", "tekken", "gpt-4o", "deepseek-llm", "falcon")
"""Pre-tokenizers that are tried in place of the file's: one for each common way to cut text."""
TEMPLATES = {
    "chatml": "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n",
    "gemma": "<start_of_turn>user\n{}<end_of_turn>\n<start_of_turn>model\n",
    "llama2": "[INST] {} [/INST]",
    "llama3": "<|start_header_id|>user<|end_header_id|>\n\n{}<|eot_id|>"
              "<|start_header_id|>assistant<|end_header_id|>\n\n",
    "zephyr": "<|user|>\n{}<|endoftext|>\n<|assistant|>\n",
    "none": "{}",
}  # fmt: skip
"""Chat formats that are tried in place of the file's, for one message of a user."""


def prompt_keys(engine: Any, tokenizer: Any) -> list[PromptBug]:
    """Return the mistakes that a wrong key of this model's tokenizer makes."""
    return [*_ends(tokenizer), *_spaces(tokenizer), *_pres(engine, tokenizer), *_templates(tokenizer)]


def _ends(t: Any) -> Iterator[PromptBug]:
    bos, eos = t.bos, t.eos
    if bos >= 0:
        yes, no = ("true", "false") if t.adds_bos else ("false", "true")
        yield PromptBug(f"{KEY}add_bos_token", f"{KEY}add_bos_token is {no}, not {yes}: "
                        + ("no BOS before the prompt" if t.adds_bos else "BOS before the prompt"),
                        lambda _, ids: ids[1:] if ids[0] == bos else [bos, *ids])  # fmt: skip
    if eos >= 0:
        yield PromptBug(f"{KEY}add_eos_token", f"{KEY}add_eos_token is true, not false: EOS after the prompt",
                        lambda _, ids: [*ids, eos])  # fmt: skip
    for other in sorted({0, 1, 2, 3, eos} - {bos, -1}) if t.adds_bos else ():
        yield PromptBug(f"{KEY}bos_token_id={other}", f"{KEY}bos_token_id is {other}, not {bos}",
                        partial(_begun, bos, other))  # fmt: skip


def _begun(right: int, wrong: int, _: Any, ids: list[int]) -> list[int]:
    return [wrong, *ids[1:]] if ids[0] == right else []


def _spaces(t: Any) -> Iterator[PromptBug]:
    first = getattr(t, "space_first", None)
    if first is None:  # byte-level tokenizers ignore the key
        return
    other = copy.copy(t)
    other.space_first = not first
    says = f"{KEY}add_space_prefix is {str(not first).lower()}, not {str(first).lower()}"
    yield PromptBug(f"{KEY}add_space_prefix", says, _texts(lambda _, text: other.encode(text)))


def _pres(engine: Any, t: Any) -> Iterator[PromptBug]:
    from ds4ref.text.library import of_gguf

    source = engine.source
    right = source.metadata.get(KEY + "pre") if source.metadata.type_of(KEY + "pre") == "string" else None
    if right is None or getattr(t, "split", "") != "library":
        return
    for pre in PRES:
        if pre != right:
            yield PromptBug(f"{KEY}pre={pre}", f"{KEY}pre is {pre}, not {right}, or one that cuts this text alike",
                            _texts(_cut(partial(of_gguf, source, pre))))  # fmt: skip


def _cut(make: Callable[[], Any]) -> Callable[[Any, bytes], list[int]]:
    """Return a function (tokenizer, text) -> ids by the tokenizer that ``make`` opens on first use."""
    opened: list[Any] = []

    def encode(_: Any, text: bytes) -> list[int]:
        opened.extend([] if opened else [make()])
        return list(opened[0].encode(text))

    return encode


def _templates(t: Any) -> Iterator[PromptBug]:
    if not t.renders:
        return

    def rendered(form: str) -> Callable[[Any, list[int]], list[int]]:
        def make(tokenizer: Any, ids: list[int]) -> list[int]:
            text = _user_text(tokenizer, ids)
            if not text:
                return []
            try:
                return [*text_start(tokenizer, text), *tokenizer.encode_rendered(form.format(text))]
            except Ds4Error:
                return []

        return make

    for name, form in TEMPLATES.items():
        yield PromptBug(f"tokenizer.chat_template={name}", f"the chat template is {name}, not the file's",
                        rendered(form))  # fmt: skip


def _user_text(t: Any, ids: list[int]) -> str:
    """Return the user's text in a prompt that the model's template rendered; "" if there is none.

    It is what is the same in two renderings of different texts, but for the text itself.
    """
    from ds4ref.text.prompts import encode_chat_prompt

    mark = "\x01"
    before, found, after = t.decode(encode_chat_prompt(t, "", mark, "none")).partition(mark.encode())
    whole = t.decode(ids)
    if not found or not whole.startswith(before) or not whole.endswith(after) or len(whole) <= len(before + after):
        return ""
    return whole[len(before) : len(whole) - len(after)].decode("utf-8", "ignore")
