"""Checks that belong to no single API: models, tokens, unknown paths."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from ..talk import NotOffered, Talk, expect, shown
from . import Checks
from .said import refused, typed
from .shapes import Entry, Models

api = Checks(name="server")


@api.check("start", "openai claude codex")
def models(talk: Talk) -> None:
    """a list of models, each with an id."""
    typed(talk.models.document(), Models)


@api.check("start", "openai", required=False)
def model(talk: Talk) -> None:
    """one model by its id."""
    entry = typed(talk.ask(f"/v1/models/{quote(talk.model, safe='')}").document(), Entry)
    expect(entry.id == talk.model, f"id {shown(entry.id)}")


@api.check("start", "codex qwen", required=False)
def context(talk: Talk) -> None:
    """the list tells the context, which agents need to know when to compact."""
    expect(talk.ctx, "no context_length or max_model_len")


@api.check("errors", "openai claude")
def unknown_path(talk: Talk) -> None:
    """404 and JSON for a path that is not there."""
    refused(talk.ask("/v1/nothing/here", {}), 404)


def tokenizer_info(talk: Talk) -> dict[str, Any]:
    """Return the answer of /tokenizer_info, which lm-evaluation-harness requests first.

    Raises NotOffered if the server has no such endpoint; its /tokenize, if it has one, may then have other members.
    """
    answer = talk.ask("/tokenizer_info")
    if answer.status in (404, 405, 501):
        raise NotOffered("/tokenizer_info")
    return answer.document()


def tokens_of(talk: Talk, text: str) -> list[int]:
    """Return the token ids of ``text``, as the server's /tokenize reports them."""
    asked = {"prompt": text, "add_special_tokens": False}
    return typed(talk.ask("/tokenize", asked).document().get("tokens"), list[int])


@api.check("score", "lm-eval")
def tokenizer(talk: Talk) -> None:
    """a tokenizer for lm-evaluation-harness: /tokenizer_info, /tokenize, /detokenize."""
    typed(tokenizer_info(talk).get("eos_token"), str)
    text = "Once upon a time, in Malmö \u2013 twice."
    back = talk.ask("/detokenize", {"tokens": tokens_of(talk, text)}).document().get("prompt")
    expect(back == text, f"{shown(text)} came back as {shown(back)}")
