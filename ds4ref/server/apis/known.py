"""Which fields of a request this server carries out, which it need not, and which it refuses by name.

A field that would change the answer is never passed over: it is carried out (``DONE``) or refused (``REFUSED``), unless
its value asks for what happens anyway. ``WITHOUT_EFFECT`` holds the fields of the APIs' public descriptions that change
no answer of this server, each with the reason. A field that none of the tables knows is ignored: clients send new ones
all the time, and most are about accounts and caches.
"""

from __future__ import annotations

from collections.abc import Mapping

from ...text.fields import array, text
from ...text.fields import fields as members
from ..api import Refused
from .fields import Body, reading

SAMPLING = ("temperature", "top_p", "min_p", "top_k", "seed", "presence_penalty", "frequency_penalty", "logit_bias")
"""What every API takes, even where its own description lacks it."""

_OPENAI = ("model", "stream", "stream_options", "reasoning_effort", "thinking", "think", "stop", "n", "max_tokens", "min_tokens",
           "ignore_eos")
_TOOLS = ("tools", "tool_choice", "prompt_cache_key")

DONE: Mapping[str, frozenset[str]] = {
    "chat": frozenset((*SAMPLING, *_OPENAI, *_TOOLS, "messages", "max_completion_tokens", "logprobs", "top_logprobs",
                       "response_format", "parallel_tool_calls")),
    "completions": frozenset((*SAMPLING, *_OPENAI, "prompt", "echo", "logprobs", "prompt_cache_key")),
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
WITHOUT_EFFECT: Mapping[str, Mapping[str, str]] = {
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
"""Fields that change no answer, by API, each with the reason."""

_OFF = frozenset(("false", "[]", "{}", '""', "0", "0.0"))
_NEVER: frozenset[str] = frozenset()
_ONE = _OFF | {"1", "1.0"}

_NOWHERE: Mapping[str, frozenset[str]] = {
    **dict.fromkeys(
        ("guided_json", "guided_regex", "guided_choice", "guided_grammar", "structured_outputs", "grammar",
         "json_schema", "regex", "ebnf", "logits_processors", "bad_words", "stop_token_ids",
         "use_beam_search", "mirostat", "mirostat_mode", "dry_multiplier", "xtc_probability", "dynatemp_range",
         "top_a", "eta_cutoff", "epsilon_cutoff", "no_repeat_ngram_size", "penalty_alpha", "samplers",
         "chat_template", "chat_template_kwargs", "thinking_budget", "moderation"),
        _OFF,
    ),
    **dict.fromkeys(("repetition_penalty", "repeat_penalty", "length_penalty", "typical_p", "tfs_z"), _ONE),
    "enable_thinking": _NEVER,
}  # fmt: skip
"""Fields of other servers, which would change the answer here, with the values that ask for nothing."""

_NO_CHOICES = {"n": _ONE, "best_of": _ONE}
_LENGTHS = {"min_tokens": _OFF, "ignore_eos": _OFF}
_FORMS = _OFF | {'{"type":"text"}'}
REFUSED: Mapping[str, Mapping[str, frozenset[str]]] = {
    "chat": {
        **_NOWHERE, "best_of": _ONE, "suffix": _OFF, "audio": _OFF, "modalities": _OFF | {'["text"]'},
        "functions": _OFF, "function_call": _OFF | {'"none"', '"auto"'}, "web_search_options": _NEVER,
        "echo": _OFF, "max_output_tokens": _OFF, "stop_sequences": _OFF, "system": _OFF, "instructions": _OFF,
        "prompt": _OFF, "input": _OFF, "output_format": _OFF, "output_config": _OFF, "text": _OFF, "reasoning": _OFF,
    },
    "completions": {
        **_NOWHERE, "best_of": _ONE, "suffix": _OFF, "tools": _OFF, "tool_choice": _OFF | {'"none"', '"auto"'},
        "response_format": _FORMS, "max_completion_tokens": _OFF, "max_output_tokens": _OFF, "stop_sequences": _OFF,
        "system": _OFF, "instructions": _OFF, "messages": _OFF, "input": _OFF, "top_logprobs": _OFF, "reasoning": _OFF,
    },
    "messages": {
        **_NOWHERE, **_NO_CHOICES, **_LENGTHS, "container": _OFF, "mcp_servers": _OFF, "thread": _OFF, "compaction": _OFF,
        "stop": _OFF, "logprobs": _OFF, "top_logprobs": _OFF, "response_format": _FORMS, "text": _OFF,
        "max_completion_tokens": _OFF, "max_output_tokens": _OFF, "instructions": _OFF, "prompt": _OFF, "input": _OFF,
        "parallel_tool_calls": frozenset(("true",)), "reasoning": _OFF, "think": _NEVER,
    },
    "responses": {
        **_NOWHERE, **_NO_CHOICES, **_LENGTHS, "previous_response_id": _NEVER, "conversation": _NEVER,
        "background": _OFF, "context_management": _OFF, "prompt": _OFF,
        "top_logprobs": _OFF, "logprobs": _OFF, "stop": _OFF,
        "stop_sequences": _OFF, "response_format": _FORMS, "max_completion_tokens": _OFF, "messages": _OFF,
        "system": _OFF, "reasoning_effort": _OFF, "thinking": _NEVER, "think": _NEVER,
        "output_format": _OFF, "output_config": _OFF,
    },
}  # fmt: skip
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

EVERYWHERE = {"guided_json": "response_format", "json_schema": "response_format", "chat_template_kwargs": "thinking",
              "enable_thinking": "thinking"}  # fmt: skip

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
            raise unsupported(name, INSTEAD[api].get(name) or (EVERYWHERE.get(name, "") if api == "chat" else ""))
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
