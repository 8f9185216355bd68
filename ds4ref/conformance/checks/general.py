"""Checks that belong to no single API: models, tokens, unknown paths."""

from __future__ import annotations

from urllib.parse import quote

from ..talk import Talk, expect, shown
from . import Checks
from .common import refused, tokenizer_info

PATH = "/v1/models"
check = Checks("server", "")


@check("start", "object, data[].id", "openai claude codex")
def models(talk: Talk) -> None:
    """a list of models, each with an id."""
    listing = talk.models.document()
    expect(listing.get("object") in ("list", None), f"object {shown(listing.get('object'))}")
    data = listing.get("data")
    expect(isinstance(data, list) and data, f"data {shown(data)}")
    expect(all(isinstance(one.get("id"), str) and one["id"] for one in listing["data"]), f"data {shown(data)}")


@check("start", "id", "openai", required=False)
def model(talk: Talk) -> None:
    """one model by its id."""
    entry = talk.ask(f"/v1/models/{quote(talk.model, safe='')}").document()
    expect(entry.get("id") == talk.model, f"id {shown(entry.get('id'))}")


@check("start", "data[].context_length", "codex qwen", required=False)
def context(talk: Talk) -> None:
    """the list tells the context, which agents need to know when to compact."""
    expect(talk.ctx, "no context_length or max_model_len")


@check("errors", "error", "openai claude")
def unknown_path(talk: Talk) -> None:
    """404 and JSON for a path that is not there."""
    refused(talk.ask("/v1/nothing/here", {}), 404)


@check("score", "eos_token; tokens; prompt", "lm-eval")
def tokenizer(talk: Talk) -> None:
    """a tokenizer for lm-evaluation-harness: /tokenizer_info, /tokenize, /detokenize."""
    info = tokenizer_info(talk)
    expect(isinstance(info.get("eos_token"), str), f"eos_token {shown(info.get('eos_token'))}")
    text = "Once upon a time, in Malmö \u2013 twice."
    ids = talk.ask("/tokenize", {"prompt": text, "add_special_tokens": False}).document().get("tokens")
    expect(isinstance(ids, list) and ids and all(isinstance(i, int) for i in ids), f"tokens {shown(ids)}")
    back = talk.ask("/detokenize", {"tokens": ids}).document().get("prompt")
    expect(back == text, f"{shown(text)} came back as {shown(back)}")
