"""Request fields of vLLM, SGLang, llama.cpp and Ollama that OpenAI's and Anthropic's own descriptions lack.

One line a field: ``REFUSED`` would change an answer and is not carried out, ``WITHOUT_EFFECT`` cannot change one. What
an API carries out is in ``known.DONE`` and goes before both. Names from the request classes of vLLM, SGLang 0.5.23,
llama.cpp's server and ollama 0.6.3.
"""

from __future__ import annotations

from collections.abc import Mapping

NEVER: frozenset[str] = frozenset()
OFF = frozenset(("false", "[]", "{}", '""', "0", "0.0"))
ONE = OFF | {"1", "1.0"}
NO_LIMIT = OFF | {"-1", "-1.0"}
ON = frozenset(("true",))

_NAMES: Mapping[frozenset[str], str] = {
    OFF: """
        guided_json guided_regex guided_choice guided_grammar guided_whitespace_pattern structured_outputs grammar
        json_schema regex ebnf structural_tag format logits_processors custom_logit_processor custom_params vllm_xargs
        bad_words stop_token_ids stop_regex allowed_token_ids logprob_token_ids prompt_logprobs prompt_embeds input_ids
        input_embeds input_extra max_time use_beam_search repetition_detection mirostat
        mirostat_mode dry_multiplier xtc_probability dynatemp_range top_a eta_cutoff epsilon_cutoff no_repeat_ngram_size
        penalty_alpha samplers sampler_seq chat_template chat_template_kwargs continue_final_message prefill_assistant
        documents add_special_tokens moderation include_stop_str_in_output no_stop_trim return_tokens_as_token_ids
        return_token_ids return_tokens return_prompt_text return_prompt_token_ids return_hidden_states return_meta_info
        return_routed_experts return_sampling_mask return_output_ids_in_sglext return_input_ids_in_sglext
        return_flat_raw_output_top_logprobs return_flat_raw_top_logprobs_b64 sampling_logprobs_mode watermark n_indent
        response_fields post_sampling_probs lora lora_path kv_transfer_params ec_transfer_params session_params task
        reasoning_in_content thinking_forced_open options raw template context images image_data system_prompt steps
        echo suffix background include previous_response_id text
        width height top_logprobs_num return_text_in_logprobs sampling_params
    """,
    ONE: "repetition_penalty repeat_penalty length_penalty typical_p typ_p tfs_z n_cmpl min_keep n_probs",
    NO_LIMIT: """
        truncate_prompt_tokens thinking_token_budget thinking_budget thinking_budget_tokens reasoning_budget
        reasoning_budget_tokens t_max_predict_ms t_max_prompt_ms top_n_sigma adaptive_target n_predict num_predict
        max_new_tokens
    """,
    ON: """
        add_generation_prompt skip_special_tokens include_reasoning separate_reasoning stream_reasoning
        parse_tool_calls
    """,
    frozenset(('"auto"', '"deepseek"', '"deepseek-legacy"')): "reasoning_format",
    frozenset(("false",)): "ignore_eos",
    frozenset(("0", "0.0")): "min_tokens",
    NEVER: "enable_thinking",
}
REFUSED: Mapping[str, frozenset[str]] = {name: values for values, names in _NAMES.items() for name in names.split()}
"""The fields, each with the values (as JSON) that ask for what happens anyway."""

_REASONS = {
    "only counts together with a field that is refused": """
        mirostat_tau mirostat_eta dry_base dry_allowed_length dry_penalty_last_n dry_sequence_breakers xtc_threshold
        dynatemp_exponent repeat_last_n penalize_newline penalize_nl grammar_lazy grammar_triggers preserved_tokens
        truncation_side adaptive_decay routed_experts_start_len
    """,
    "prefixes are cached as they come, whatever a request says about it": """
        cache_salt extra_key cache_prompt n_cache_reuse id_slot slot_id keep_alive n_keep num_keep n_discard
    """,
    "asks for speed or for a place in the queue, not for another answer": """
        priority data_parallel_rank bootstrap_host bootstrap_port bootstrap_room disagg_prefill_dp_rank
        speculative.n_max speculative.n_min speculative.p_min speculative.type backend_sampling num_batch num_gpu
        main_gpu num_thread numa low_vram f16_kv use_mmap use_mlock logits_all vocab_only embedding_only num_ctx
        stream_interval
    """,
    "about records: ids and labels by which a client finds its request again": """
        request_id rid session_id custom_labels
    """,
    "about images, sounds and films; they are replaced by a note": """
        mm_processor_kwargs media_io_kwargs images_config video_config use_audio_in_video min_dynamic_patch
        max_dynamic_patch
    """,
    "asks for figures beside the answer; they are in the Server-Timing header and in usage": """
        timings_per_token return_progress return_cached_tokens_details return_spec_tokens_details verbose
    """,
    "about an account or a record that a hosted service keeps": "user store",
    "of one API of four: what it asks for is what happens in the others": """
        stream_options parallel_tool_calls max_tool_calls truncation
    """,
    "of endpoints that only render a prompt": "return_token_offsets return_assistant_tokens_mask",
    "no spaces are put between control tokens, which are not shown": "spaces_between_special_tokens",
}
WITHOUT_EFFECT: Mapping[str, str] = {name: reason for reason, names in _REASONS.items() for name in names.split()}

INSTEAD: Mapping[str, str] = {
    **dict.fromkeys(("guided_json", "json_schema", "format", "structured_outputs"), "response_format"),
    **dict.fromkeys(("chat_template_kwargs", "enable_thinking", "thinking_forced_open"), "thinking"),
    **dict.fromkeys(("thinking_token_budget", "thinking_budget", "thinking_budget_tokens", "reasoning_budget",
                     "reasoning_budget_tokens"), "thinking_token_budget"),
    **dict.fromkeys(("n_predict", "num_predict", "max_new_tokens"), "max_tokens"),
    **dict.fromkeys(("repetition_penalty", "repeat_penalty"), "frequency_penalty"),
    **dict.fromkeys(("bad_words", "allowed_token_ids"), "logit_bias"),
    **dict.fromkeys(("stop_token_ids", "stop_regex"), "stop"),
    **dict.fromkeys(("n_probs", "top_logprobs_num"), "logprobs"),
    "n_cmpl": "n",
    **dict.fromkeys(("min_tokens", "ignore_eos"), "/v1/chat/completions"),
    "echo": "/v1/completions",
    "previous_response_id": "messages",
    "prompt_logprobs": "echo and logprobs of /v1/completions",
    "options": "its members as fields of the request",
    "raw": "/v1/completions",
    "input_ids": "prompt of /v1/completions",
}  # fmt: skip
"""What to use instead, by the names of the chat API."""

NAMES: Mapping[str, Mapping[str, str]] = {
    "chat": {},
    "completions": {"messages": "prompt", "response_format": "response_format of /v1/chat/completions",
                    "thinking_token_budget": "/v1/chat/completions"},
    "messages": {"response_format": "output_config.format", "thinking_token_budget": "/v1/chat/completions",
                 "stop": "stop_sequences", "logprobs": "/v1/chat/completions", "n": "/v1/chat/completions"},
    "responses": {"response_format": "text.format", "thinking": "reasoning.effort", "max_tokens": "max_output_tokens",
                  "thinking_token_budget": "/v1/chat/completions", "stop": "/v1/chat/completions",
                  "logprobs": "/v1/chat/completions", "n": "/v1/chat/completions"},
}  # fmt: skip
"""How the other APIs name what ``INSTEAD`` says."""


def instead(name: str, api: str) -> str:
    """Return what to use instead of the field ``name`` in ``api``, "" if there is nothing."""
    other = INSTEAD.get(name, "")
    return NAMES[api].get(other, other)
