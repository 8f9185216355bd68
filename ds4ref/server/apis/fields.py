"""Parsing of request bodies, and what happens to fields that an API does not support.

The supported fields are those of the API's request type (``requests``). Any other known field that would change the
answer is refused by name, unless its value asks for what happens anyway. A field that is not known is ignored, since
clients send new ones all the time. The known names come from the public API descriptions of OpenAI and Anthropic, and
from vLLM, SGLang 0.5.23, llama.cpp's server and ollama 0.6.3; tests/data/request_fields.json says why some of them are
ignored.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec
from msgspec import Raw

from ..api import About, Refused, bad
from .requests import REQUESTS, Request

T = TypeVar("T")

NEVER: frozenset[str] = frozenset()
OFF = frozenset(("false", "[]", "{}", '""', "0", "0.0"))
ONE = OFF | {"1", "1.0"}
NO_LIMIT = OFF | {"-1", "-1.0"}
ON = frozenset(("true",))

_NEUTRAL: Mapping[frozenset[str], str] = {
    OFF: """
        suffix audio functions container apply_chat_template mcp_servers thread compaction
        background context_management moderation
        guided_json guided_regex guided_choice guided_grammar guided_whitespace_pattern structured_outputs grammar
        json_schema regex ebnf structural_tag format logits_processors custom_logit_processor custom_params vllm_xargs
        bad_words stop_token_ids stop_regex allowed_token_ids logprob_token_ids prompt_logprobs prompt_embeds input_ids
        input_embeds input_extra max_time use_beam_search repetition_detection mirostat
        mirostat_mode dry_multiplier xtc_probability dynatemp_range top_a eta_cutoff epsilon_cutoff no_repeat_ngram_size
        penalty_alpha samplers sampler_seq chat_template chat_template_kwargs prefill_assistant
        documents add_special_tokens include_stop_str_in_output no_stop_trim return_tokens_as_token_ids
        return_tokens return_prompt_text return_prompt_token_ids return_hidden_states return_meta_info
        return_routed_experts return_sampling_mask return_output_ids_in_sglext return_input_ids_in_sglext
        return_flat_raw_output_top_logprobs return_flat_raw_top_logprobs_b64 sampling_logprobs_mode watermark n_indent
        response_fields post_sampling_probs lora lora_path kv_transfer_params ec_transfer_params session_params task
        reasoning_in_content thinking_forced_open options raw template context images image_data system_prompt steps
        width height top_logprobs_num return_text_in_logprobs sampling_params
    """,
    ONE: "n best_of repetition_penalty repeat_penalty length_penalty typical_p typ_p tfs_z n_cmpl min_keep n_probs",
    NO_LIMIT: """
        truncate_prompt_tokens thinking_token_budget thinking_budget thinking_budget_tokens reasoning_budget
        reasoning_budget_tokens t_max_predict_ms t_max_prompt_ms top_n_sigma adaptive_target n_predict num_predict
        max_new_tokens
    """,
    ON: """
        add_generation_prompt skip_special_tokens include_reasoning separate_reasoning stream_reasoning
        parse_tool_calls parallel_tool_calls
    """,
    OFF | {'["text"]'}: "modalities",
    OFF | {'{"type":"text"}'}: "response_format",
    OFF | {'"none"', '"auto"'}: "function_call tool_choice",
    frozenset(('"auto"', '"deepseek"', '"deepseek-legacy"')): "reasoning_format",
    NEVER: "previous_response_id conversation enable_thinking thinking think web_search_options",
}
NEUTRAL = {name: values for values, names in _NEUTRAL.items() for name in names.split()}
"""Fields that would change an answer, each with the values (as JSON) that are accepted, since they change nothing."""

IGNORED = {
    # a plain prompt has no tools and no reasoning
    "completions": frozenset(("thinking", "think", "reasoning_effort", "parallel_tool_calls", "tool_choice")),
    # these APIs do anyway what the option asks for
    **dict.fromkeys(("messages", "responses"), frozenset(("stream_options",))),
}
"""By API, fields that belong to other APIs and are ignored here, since they would not change the answer."""

CHAT, PLAIN = "/v1/chat/completions", "/v1/completions"
_CALLED: Mapping[str, tuple[str, str, str, str]] = {
    "max_tokens max_completion_tokens max_output_tokens n_predict num_predict max_new_tokens":
        ("max_tokens", "max_tokens", "max_tokens", "max_output_tokens"),
    "response_format output_format output_config text guided_json json_schema format structured_outputs":
        ("response_format", f"response_format of {CHAT}", "output_config.format", "text.format"),
    "thinking think reasoning reasoning_effort chat_template_kwargs enable_thinking thinking_forced_open":
        ("reasoning_effort", CHAT, "thinking", "reasoning.effort"),
    "messages input prompt previous_response_id conversation": ("messages", "prompt", "messages", "input"),
    "system instructions": ("messages", "prompt", "system", "instructions"),
    "stop stop_sequences stop_token_ids stop_regex": ("stop", "stop", "stop_sequences", CHAT),
    "logprobs top_logprobs n_probs top_logprobs_num": ("logprobs", "logprobs", CHAT, CHAT),
    "n best_of n_cmpl": ("n", "n", CHAT, CHAT),
    "thinking_token_budget thinking_budget thinking_budget_tokens reasoning_budget reasoning_budget_tokens":
        ("thinking_token_budget", CHAT, CHAT, CHAT),
    "functions tools": ("tools", CHAT, "tools", "tools"),
    "function_call tool_choice": ("tool_choice", CHAT, "tool_choice", "tool_choice"),
    "parallel_tool_calls": ("", "", "tool_choice.disable_parallel_tool_use", ""),
    "repetition_penalty repeat_penalty": ("frequency_penalty",) * 4,
    "bad_words allowed_token_ids": ("logit_bias",) * 4,
    "min_tokens ignore_eos": (CHAT,) * 4,
    "echo raw": (PLAIN,) * 4,
    "prompt_logprobs": (f"echo and logprobs of {PLAIN}",) * 4,
    "input_ids": (f"prompt of {PLAIN}",) * 4,
    "options": ("its members as fields of the request",) * 4,
}  # fmt: skip
INSTEAD = {name: called for names, called in _CALLED.items() for name in names.split()}
"""What to use instead of a refused field, in each of the four APIs (in the order of REQUESTS); "" for nothing."""


_ESCAPE = re.compile(
    r"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(u[dD][89a-fA-F][0-9a-fA-F]{2})|.)", re.DOTALL
)
"""An escape sequence in a JSON string; group 1 matches if it is half of a surrogate pair without the other half."""


def read(data: bytes, api: str, about: About) -> Any:
    """Parse the body of a request to ``api`` into its type in REQUESTS.

    If a name occurs twice, the last one counts; a lone half of a surrogate pair becomes U+FFFD; a missing model becomes
    the served one. Raises Refused (400) for a body that is not a JSON object, a field of a wrong type, and a field that
    is not supported.
    """
    text, members = members_of(data)
    check(members, api)
    request: Request = typed(text, REQUESTS[api])
    request.model = about.model if request.model is None else request.model
    return request


def members_of(data: bytes) -> tuple[str, dict[str, Raw]]:
    """Return a body's text and the members of the JSON object in it; raises Refused (400) if it is not one."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise bad(f"the body is not UTF-8 (byte {error.start})") from None
    try:
        return text, msgspec.json.decode(text, type=dict[str, Raw])
    except msgspec.DecodeError:
        # msgspec refuses half a surrogate pair, which JavaScript clients send when they cut a text inside a character
        text = _ESCAPE.sub(lambda match: "\\ufffd" if match[1] else match[0], text)
        return text, typed(text, dict[str, Raw])


def typed(text: str, kind: type[T]) -> T:
    """Parse JSON text as the type ``kind``; raises Refused (400), naming the field, if it does not fit."""
    try:
        return msgspec.json.decode(text, type=kind)
    except msgspec.MsgspecError as error:
        raise bad(str(error)) from None


def check(members: Mapping[str, Raw], api: str) -> None:
    """Raise Refused (400), naming the field, if a request to ``api`` has a known field that is not supported."""
    ours = REQUESTS[api].__struct_fields__
    elsewhere = {name for request in REQUESTS.values() for name in request.__struct_fields__}
    for name, raw in members.items():
        if name in ours or name in IGNORED.get(api, ()):
            continue
        value = "".join(bytes(raw).decode().split())
        if name not in NEUTRAL and name not in elsewhere or value == "null" or value in NEUTRAL.get(name, OFF):
            continue
        if name == "best_of" and "n" in members and value == bytes(members["n"]).decode():
            continue  # best_of == n: all answers are returned, as without it
        raise unsupported(name, INSTEAD.get(name, ("",) * 4)[list(REQUESTS).index(api)])


def unsupported(name: str, instead: str = "") -> Refused:
    """Return the Refused (400) for the field ``name``, which is not supported; ``instead``: what to use for it."""
    details = {"error_code": "thread_unsupported_request", "unsupported": [name]}
    return Refused(
        400,
        f"{name} is not supported" + (f"; use {instead}" if instead else ""),
        extra={"details": details} if name == "thread" else None,  # Anthropic's tool runner then continues without it
    )
