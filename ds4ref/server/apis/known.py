"""Which fields of a request this server carries out, which it need not, and which it refuses by name.

A field that would change the answer is never passed over: it is carried out (``DONE``) or refused (``REFUSED``), unless
its value asks for what happens anyway. ``WITHOUT_EFFECT`` holds the fields of the APIs' public descriptions that change
no answer of this server, each with the reason. A field that none of the tables knows is ignored: clients send new ones
all the time, and most are about accounts and caches.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from ...text.fields import array, text
from ...text.fields import fields as members
from ..api import Refused
from . import others
from .fields import BUDGETS, LENGTHS, Body, reading
from .others import NEVER, OFF, ONE

V = TypeVar("V")

SAMPLING = ("temperature", "top_p", "min_p", "top_k", "seed", "presence_penalty", "frequency_penalty", "logit_bias")
"""What every API takes, even where its own description lacks it."""

_OPENAI = (
    "model",
    "stream",
    "stream_options",
    "reasoning_effort",
    "thinking",
    "think",
    "stop",
    "n",
    *LENGTHS,
    "min_tokens",
    "ignore_eos",
    "return_token_ids",
)
_TOOLS = ("tools", "tool_choice", "prompt_cache_key")

DONE: Mapping[str, frozenset[str]] = {
    "chat": frozenset((*SAMPLING, *_OPENAI, *_TOOLS, "messages", "max_completion_tokens", "logprobs", "top_logprobs",
                       "response_format", "parallel_tool_calls", "include_reasoning", *BUDGETS,
                       "continue_final_message", "add_generation_prompt")),
    "completions": frozenset((*SAMPLING, *_OPENAI, "prompt", "echo", "logprobs", "prompt_cache_key",
                              "apply_chat_template")),
    "messages": frozenset((*SAMPLING, *_TOOLS, "model", "stream", "messages", "system", "max_tokens", "thinking",
                           "stop_sequences", "output_config", "output_format", "reasoning_effort",
                           "context_management")),
    "responses": frozenset((*SAMPLING, *_TOOLS, "model", "stream", "input", "instructions", "max_output_tokens",
                            "max_tokens", "reasoning", "text", "parallel_tool_calls", "include")),
}  # fmt: skip

_ACCOUNT = "about an account, a bill or a record that a hosted service keeps"
_CACHE = "prefixes are cached as they come, whatever a request says about it"
_QUICKER = "asks for speed, not for another answer"
_HOSTED = "about tools that a hosted service runs; none is shown to the model here"
_HINT = "a hint for which DeepSeek V4's prompt has no words; agents send it with every request"

_OPENAI_WITHOUT = {
    **dict.fromkeys(("user", "safety_identifier", "metadata", "store", "service_tier"), _ACCOUNT),
    **dict.fromkeys(("prompt_cache_retention", "prompt_cache_options"), _CACHE),
}
_OWN_WITHOUT: Mapping[str, Mapping[str, str]] = {
    "chat": {**_OPENAI_WITHOUT, "prediction": _QUICKER, "verbosity": _HINT},
    "completions": _OPENAI_WITHOUT,
    "messages": {
        **dict.fromkeys(("metadata", "service_tier", "inference_geo", "user_profile_id", "workspace_id", "diagnostics",
                         "betas", "billing_policy", "fallback_credit_token"), _ACCOUNT),
        "cache_control": _CACHE,
        "speed": _QUICKER,
        "fallbacks": "says which other model answers where this one declines: there is no other one",
        "safeguards": "about checks that a hosted service makes; Claude Code sends it",
    },
    "responses": {
        **_OPENAI_WITHOUT,
        "max_tool_calls": _HOSTED,
        "background_options": "counts with background: true alone, which is refused",
        "access_programs": _ACCOUNT,
        "image": "about images; they are replaced by a note",
        "stream_options": "pads events so that their lengths tell nothing; none is padded here",
        "client_metadata": _ACCOUNT,
        "truncation": "a history that does not fit is refused either way, so none is answered that lacks its beginning",
    },
}  # fmt: skip

_NO_CHOICES = {"n": ONE, "best_of": ONE}
_FORMS = OFF | {'{"type":"text"}'}
_OWN_REFUSED: Mapping[str, Mapping[str, frozenset[str]]] = {
    "chat": {
        "best_of": ONE, "suffix": OFF, "audio": OFF, "modalities": OFF | {'["text"]'},
        "functions": OFF, "function_call": OFF | {'"none"', '"auto"'}, "web_search_options": NEVER,
        "echo": OFF, "max_output_tokens": OFF, "stop_sequences": OFF, "system": OFF, "instructions": OFF,
        "prompt": OFF, "input": OFF, "output_format": OFF, "output_config": OFF, "text": OFF, "reasoning": OFF,
    },
    "completions": {
        "best_of": ONE, "suffix": OFF, "tools": OFF, "tool_choice": OFF | {'"none"', '"auto"'},
        "response_format": _FORMS, "max_completion_tokens": OFF, "max_output_tokens": OFF, "stop_sequences": OFF,
        "system": OFF, "instructions": OFF, "messages": OFF, "input": OFF, "top_logprobs": OFF, "reasoning": OFF,
    },
    "messages": {
        **_NO_CHOICES, "container": OFF, "mcp_servers": OFF, "thread": OFF, "compaction": OFF,
        "stop": OFF, "logprobs": OFF, "top_logprobs": OFF, "response_format": _FORMS, "text": OFF,
        "max_completion_tokens": OFF, "max_output_tokens": OFF, "instructions": OFF, "prompt": OFF, "input": OFF,
        "parallel_tool_calls": frozenset(("true",)), "reasoning": OFF, "think": NEVER,
    },
    "responses": {
        **_NO_CHOICES, "previous_response_id": NEVER, "conversation": NEVER,
        "background": OFF, "context_management": OFF, "prompt": OFF,
        "top_logprobs": OFF, "logprobs": OFF, "stop": OFF,
        "stop_sequences": OFF, "response_format": _FORMS, "max_completion_tokens": OFF, "messages": OFF,
        "system": OFF, "reasoning_effort": OFF, "thinking": NEVER, "think": NEVER,
        "output_format": OFF, "output_config": OFF,
    },
}  # fmt: skip


def _joined(own: Mapping[str, Mapping[str, V]], foreign: Mapping[str, V]) -> dict[str, dict[str, V]]:
    """Return the tables by API with the fields of other servers that the API's own tables lack."""
    has = {api: DONE[api] | set(_OWN_REFUSED[api]) | set(_OWN_WITHOUT[api]) for api in DONE}
    return {api: {n: v for n, v in foreign.items() if n not in has[api]} | dict(own[api]) for api in DONE}


WITHOUT_EFFECT = _joined(_OWN_WITHOUT, others.WITHOUT_EFFECT)
"""Fields that change no answer, by API, each with the reason."""

REFUSED = _joined(_OWN_REFUSED, others.REFUSED)
"""Fields that are refused by name, by API, with the values (as JSON) that ask for what happens anyway."""

INSTEAD: Mapping[str, Mapping[str, str]] = {
    "chat": {
        "functions": "tools", "function_call": "tool_choice", "max_output_tokens": "max_tokens",
        "stop_sequences": "stop", "system": "messages", "instructions": "messages", "prompt": "messages",
        "input": "messages", "output_format": "response_format", "output_config": "response_format",
        "text": "response_format", "reasoning": "reasoning_effort",
    },
    "completions": {
        "best_of": "n", "max_completion_tokens": "max_tokens", "max_output_tokens": "max_tokens",
        "stop_sequences": "stop", "top_logprobs": "logprobs", "messages": "prompt", "input": "prompt",
        "reasoning": "reasoning_effort",
    },
    "messages": {
        "stop": "stop_sequences", "response_format": "output_config.format", "text": "output_config.format",
        "max_completion_tokens": "max_tokens", "max_output_tokens": "max_tokens", "instructions": "system",
        "prompt": "messages", "input": "messages", "parallel_tool_calls": "tool_choice.disable_parallel_tool_use",
        "reasoning": "thinking", "think": "thinking",
    },
    "responses": {
        "response_format": "text.format", "output_format": "text.format", "output_config": "text.format",
        "max_completion_tokens": "max_output_tokens", "messages": "input", "system": "instructions",
        "reasoning_effort": "reasoning.effort", "thinking": "reasoning.effort", "think": "reasoning.effort",
    },
}  # fmt: skip
"""The field that does it, where an API has another name for it."""

LOGPROBS = "message.output_text.logprobs"
CLEARING, CLEARING_LATE = "clear_thinking", "clear_tool_uses"
"""Edits of the context: what the model thought before is left out by its own rules; tool results are left out from
100,000 tokens on where no trigger is named, which is not done, but clients send it with every request."""


def check(body: Body, api: str) -> None:
    """Raise Refused (400), naming the field, if the request asks for what this server does not do."""
    for name in body.names:
        neutral, raw = REFUSED[api].get(name), "".join(body.needed(name).split())
        if name == "best_of" and raw == body.raw("n"):
            continue  # the best of as many as are returned is what happens anyway
        if neutral is not None and raw not in neutral:
            raise unsupported(name, INSTEAD[api].get(name) or others.instead(name, api))
    with reading():
        if api == "responses":
            wanted = body.raw("include")
            if wanted is not None and LOGPROBS in [
                text(one, "an entry of include") for one in array(wanted, "include")
            ]:
                raise unsupported(f"include: {LOGPROBS}", "/v1/chat/completions")
            _only(body, "reasoning", {"context": ("auto",), "mode": ("standard",)})
        if api == "messages":
            edits = body.object("context_management").get("edits", "[]")
            for edit in array(edits, "edits"):
                found = members(edit, "an edit")
                kind = text(found.get("type"), "type of an edit")
                if kind.startswith(CLEARING_LATE) and "trigger" in found:
                    raise unsupported(f"context_management: {kind[:100]} with a trigger")
                if not kind.startswith((CLEARING, CLEARING_LATE)):
                    raise unsupported(f"context_management: {kind[:100]}")


def _only(body: Body, name: str, allowed: Mapping[str, tuple[str, ...]]) -> None:
    """Refuse members of the object ``name`` that have other values than the ``allowed`` ones."""
    found = body.object(name)
    for member, values in allowed.items():
        if member in found and text(found[member], member) not in values:
            raise unsupported(f"{name}.{member}")


def unsupported(name: str, instead: str = "") -> Refused:
    """Return the Refused (400) for a field that would change the answer and is not carried out."""
    details = {"error_code": "thread_unsupported_request", "unsupported": [name]}
    return Refused(
        400,
        f"{name} is not supported" + (f"; use {instead}" if instead else ""),
        extra={"details": details} if name == "thread" else None,  # by which Anthropic's runner goes on without one
    )
