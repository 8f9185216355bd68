"""Every field of the four APIs' public descriptions is carried out, refused by name, or known to change no answer."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ds4ref.server.api import Refused
from ds4ref.server.apis import known, others
from ds4ref.server.apis.fields import BUDGETS
from ds4ref.server.openapi import SCHEMAS
from ds4ref.server.turn import Turn
from ds4ref.targets.answer import Delta, Finish, Step, Token, Usage

from .answers import data_of, play, read

PATHS = {"chat": "/v1/chat/completions", "completions": "/v1/completions", "messages": "/v1/messages",
         "responses": "/v1/responses"}  # fmt: skip
USERS = [{"role": "user", "content": "q"}]
ASKS: dict[str, dict[str, Any]] = {
    "chat": {"messages": USERS}, "completions": {"prompt": "q"}, "messages": {"messages": USERS, "max_tokens": 9},
    "responses": {"input": "q"},
}  # fmt: skip
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
CHAT_TOOL = {"type": "function", "function": {"name": "f", "parameters": SCHEMA}}

PUBLIC = {
    # The fields of each API's description in its official SDK (openai 3.54, anthropic 2.12), and `stream`.
    "chat": """audio frequency_penalty function_call functions logit_bias logprobs max_completion_tokens max_tokens
        messages metadata modalities model moderation n parallel_tool_calls prediction presence_penalty
        prompt_cache_key prompt_cache_options prompt_cache_retention reasoning_effort response_format
        safety_identifier seed service_tier stop store stream stream_options temperature tool_choice tools top_logprobs
        top_p user verbosity web_search_options""",
    "completions": """best_of echo frequency_penalty logit_bias logprobs max_tokens model n presence_penalty prompt seed
        stop stream stream_options suffix temperature top_p user""",
    "responses": """access_programs background background_options context_management conversation image include input
        instructions max_output_tokens max_tool_calls metadata model moderation parallel_tool_calls
        previous_response_id prompt prompt_cache_key prompt_cache_options prompt_cache_retention reasoning
        safety_identifier service_tier store stream stream_options temperature text tool_choice tools top_logprobs
        top_p truncation user""",
    "messages": """betas billing_policy cache_control compaction container context_management diagnostics
        fallback_credit_token fallbacks inference_geo max_tokens mcp_servers messages metadata model output_config
        service_tier speed stop_sequences stream system thinking thread tool_choice tools user_profile_id workspace_id
        temperature top_p top_k output_format""",
}

VALUES: dict[str, Any] = {
    # Values of the descriptions: the first of each asks for another answer than no such field would get, or, where the
    # field changes none, is one that a client sends.
    "audio": [{"voice": "alloy", "format": "mp3"}],
    "frequency_penalty": [0.5, -2, 0], "presence_penalty": [1.5, 0], "logit_bias": [{"50": -100, "7": 3.5}, {}],
    "function_call": [{"name": "f"}, "none"], "functions": [[{"name": "f", "parameters": SCHEMA}], []],
    "logprobs": [True, False], "max_completion_tokens": [3], "max_tokens": [3], "max_output_tokens": [3],
    "metadata": [{"user_id": "u"}], "modalities": [["text", "audio"], ["text"]], "model": ["deepseek-chat", "m"],
    "moderation": [{"type": "x"}], "n": [3, 1], "parallel_tool_calls": [False, True],
    "prediction": [{"type": "content", "content": "x"}], "prompt_cache_key": ["k"], "prompt_cache_options": [{"a": 1}],
    "prompt_cache_retention": ["24h"], "reasoning_effort": ["none", "high", "max"],
    "response_format": [{"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}, {"type": "xml"},
                        {"type": "json_object"}, {"type": "text"}],
    "safety_identifier": ["s"], "seed": [0, 7], "service_tier": ["auto"], "stop": [["END"], "x"], "store": [True],
    "stream": [True, False], "stream_options": [{"include_usage": True}], "temperature": [0, 0.3],
    "tool_choice": ["none", "auto"], "top_p": [0.3, 1], "top_k": [5, 0], "user": ["u"], "verbosity": ["low"],
    "web_search_options": [{}, {"search_context_size": "low"}], "best_of": [4, 1], "echo": [True, False],
    "suffix": ["end", ""], "access_programs": [["x"]], "background": [True, False], "background_options": [{"a": 1}],
    "conversation": ["conv_1", {"id": "conv_1"}], "image": [{"a": 1}], "instructions": ["Be brief."],
    "include": [["message.output_text.logprobs"], ["reasoning.encrypted_content"], []], "max_tool_calls": [2],
    "previous_response_id": ["resp_1"], "truncation": ["auto", "disabled"],
    "reasoning": [{"effort": "none"}, {"summary": "auto"}, {"context": "all_turns"}, {"mode": "pro"}, {}],
    "betas": [["x"]], "billing_policy": [{"type": "billing_policy"}], "cache_control": [{"type": "ephemeral"}],
    "compaction": [{"type": "x"}], "container": ["c", None], "diagnostics": [{"previous_message_id": "m"}],
    "fallback_credit_token": ["t"], "fallbacks": [[{"model": "m"}]], "inference_geo": ["us"],
    "mcp_servers": [[{"type": "url", "url": "http://x", "name": "n"}], []],
    "output_config": [{"format": {"type": "json_schema", "schema": SCHEMA}}, {"effort": "max"}],
    "output_format": [{"type": "json_schema", "schema": SCHEMA}, {"type": "yaml"}], "speed": ["fast"],
    "stop_sequences": [["END"]], "system": ["Be brief."], "thread": [{"type": "create"}],
    "thinking": [{"type": "enabled", "budget_tokens": 1024}, {"type": "adaptive"}, {"type": "disabled"}],
    "user_profile_id": ["u"], "workspace_id": ["w"],
}  # fmt: skip
OF_API: dict[str, dict[str, Any]] = {
    "chat": {"tools": [[CHAT_TOOL], []], "top_logprobs": [3, 0], "messages": [[*USERS, *USERS]]},
    "completions": {"logprobs": [2], "prompt": ["other", ["a", "b"], [1, 2]]},
    "messages": {"tools": [[{"name": "f", "input_schema": SCHEMA}], []], "messages": [[*USERS, *USERS]],
                 "tool_choice": [{"type": "none"}, {"type": "auto"}],
                 "context_management": [{"edits": [{"type": "clear_tool_uses_20250919", "trigger": {}}]},
                                        {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}]},
    "responses": {"tools": [[{"type": "function", "name": "f", "parameters": SCHEMA}], []], "top_logprobs": [3, 0],
                  "input": ["other", USERS], "context_management": [[{"type": "compaction"}], []],
                  "prompt": [{"id": "p"}], "text": [{"format": {"type": "json_schema", "name": "n", "schema": SCHEMA}},
                                                    {"verbosity": "low"}],
                  "stream_options": [{"include_obfuscation": False}]},
}  # fmt: skip
OTHERS = {
    "guided_json": SCHEMA, "guided_regex": "a+", "guided_choice": ["a"], "guided_grammar": "x", "grammar": "root ::= x",
    "json_schema": SCHEMA, "repetition_penalty": 1.2, "stop_token_ids": [5],
    "use_beam_search": True, "mirostat": 2, "chat_template_kwargs": {"enable_thinking": False}, "typical_p": 0.5,
    "enable_thinking": False, "bad_words": ["x"], "logits_processors": ["x"], "structured_outputs": {"json": SCHEMA},
}  # fmt: skip

NEEDS = {"tool_choice": "tools", "parallel_tool_calls": "tools", "top_logprobs": "logprobs", "stream_options": "stream"}
"""Fields that mean nothing without another one."""


def seen(turn: Turn, reply: Any) -> Any:
    """All that decides about the answer."""
    held = {name: value for name, value in vars(reply).items() if isinstance(value, (bool, int))}
    return turn, held


def values_of(api: str, name: str) -> list[Any]:
    return OF_API[api].get(name) or VALUES[name]


def outcome(api: str, fields: dict[str, Any]) -> Any:
    """What the request becomes, or the message that refuses it."""
    try:
        turn, reply = read(PATHS[api], {**ASKS[api], **fields}, ctx=2**20)
    except Refused as refused:
        assert refused.status == 400
        return refused.message
    return seen(turn, reply)


def test_every_field_is_in_one_of_the_tables():
    for api, names in PUBLIC.items():
        for name in names.split():
            tables = [
                table for table, known_names in (("done", known.DONE[api]), ("without", known.WITHOUT_EFFECT[api]),
                                                 ("refused", known.REFUSED[api])) if name in known_names
            ]  # fmt: skip
            assert len(tables) == 1, (api, name, tables)
        assert all(reason and len(reason) > 15 for reason in known.WITHOUT_EFFECT[api].values())
        assert not set(known.DONE[api]) & set(known.REFUSED[api]) and set(known.INSTEAD[api]) <= set(known.REFUSED[api])


@pytest.mark.parametrize("api", PATHS)
def test_each_field_does_what_its_table_says(api):
    """Done: it makes another request of it. Refused: by its name. Without effect: the same request."""
    for name in PUBLIC[api].split():
        context = {}
        for needed in [NEEDS[name]] if name in NEEDS else []:
            if needed in PUBLIC[api].split():
                context[needed] = values_of(api, needed)[0]
        plain, found = outcome(api, context), outcome(api, {**context, name: values_of(api, name)[0]})
        if name in known.REFUSED[api]:
            assert isinstance(found, str) and name in found, (name, found)
        elif name in known.WITHOUT_EFFECT[api]:
            assert found == plain, name
        elif name in ("include", "context_management"):
            assert isinstance(found, str) and name in found
        else:
            assert not isinstance(found, str), (name, found)
            assert found != plain, f"{name} is passed over"


NESTED: dict[str, list[dict[str, Any]]] = {
    # What stands in place of {}, in objects that the API reads, as null: each member of the description below them.
    "chat": [{"stream_options": {"include_usage": None, "include_obfuscation": None}},
             {"response_format": {"type": "json_object", "json_schema": None}},
             {"thinking": {"type": None, "budget_tokens": None}}],
    "completions": [{"stream_options": {"include_usage": None}}],
    "messages": [{"output_config": {"effort": None, "format": None}}, {"context_management": {"edits": None}},
                 {"thinking": {"type": "enabled", "budget_tokens": None, "display": None}}],
    "responses": [{"reasoning": {"effort": None, "summary": None, "context": None, "mode": None}},
                  {"text": {"format": None, "verbosity": None}}],
}  # fmt: skip


@pytest.mark.parametrize("api", PATHS)
def test_null_is_absent(api):
    """Of every field that any table or the OpenAPI document knows, and of the members of objects."""
    described = {name for schema in SCHEMAS.values() for name in schema.get("properties", ()) if name not in ASKS[api]}
    tables = (known.DONE[api], known.WITHOUT_EFFECT[api], known.REFUSED[api])
    for name in sorted(described.union(*tables) - set(ASKS[api])):
        assert outcome(api, {name: None}) == outcome(api, {}), name
    required = next(name for name in ASKS[api] if name != "max_tokens")
    assert outcome(api, {required: None}) == f"missing {required}"
    for fields in NESTED[api]:
        full = {name: {k: v for k, v in one.items() if v is not None} for name, one in fields.items()}
        assert outcome(api, fields) == outcome(api, full), fields


@pytest.mark.parametrize("api", PATHS)
@pytest.mark.parametrize("name", OTHERS)
def test_fields_of_other_servers_are_refused_by_name(api, name):
    found = outcome(api, {name: OTHERS[name]})
    assert isinstance(found, str) and found.startswith(f"{name} is not supported") and len(found) < 100
    assert outcome(api, {name: None}) == outcome(api, {})


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("api", ["chat", "completions"])
def test_an_answer_lists_its_token_ids_on_request(api, stream):
    """As vLLM's: a list a choice, those behind the visible text included; by these llama-benchy counts."""
    steps = [Step(Token(b"a", None, 5)), Step(Token(b"", None, 0)), Step(Token(b"b", None, 7))]
    said = [Delta("a", (steps[0],)), Delta("", (steps[1],)), Delta("b", (steps[2],)),
            Delta(finish=Finish.STOP, usage=Usage(1, 3, 0, 0))]  # fmt: skip
    for asked, wanted in ((True, [5, 0, 7]), (False, None)):
        request = {**ASKS[api], "stream": stream, "return_token_ids": asked}
        out = play(read(PATHS[api], request)[1], said)
        chunks = [c for c in data_of(out) if c != "[DONE]"] if stream else [json.loads(out)]
        listed = [c["choices"][0]["token_ids"] for c in chunks if "token_ids" in c["choices"][0]]
        assert (sum(listed, []) if listed else None) == wanted


FOREIGN = """
    messages model frequency_penalty logit_bias logprobs top_logprobs max_tokens max_completion_tokens n
    presence_penalty response_format seed stop stream stream_options temperature top_p tools tool_choice
    reasoning_effort thinking_token_budget include_reasoning parallel_tool_calls user use_beam_search top_k min_p
    repetition_penalty length_penalty stop_token_ids include_stop_str_in_output ignore_eos min_tokens
    skip_special_tokens spaces_between_special_tokens truncate_prompt_tokens truncation_side     prompt_logprobs
    allowed_token_ids bad_words echo add_generation_prompt continue_final_message add_special_tokens documents
    chat_template chat_template_kwargs     media_io_kwargs mm_processor_kwargs structured_outputs priority request_id
    return_tokens_as_token_ids     return_token_ids return_token_offsets return_prompt_text
    return_assistant_tokens_mask cache_salt kv_transfer_params     ec_transfer_params vllm_xargs repetition_detection
    prompt prompt_embeds suffix best_of

    custom_labels custom_logit_processor custom_params data_parallel_rank ebnf extra_key images_config input_ids
    json_schema lora_path max_dynamic_patch min_dynamic_patch no_stop_trim regex return_cached_tokens_details
    return_flat_raw_output_top_logprobs return_flat_raw_top_logprobs_b64 return_hidden_states
    return_input_ids_in_sglext return_meta_info return_output_ids_in_sglext return_prompt_token_ids
    return_routed_experts return_sampling_mask return_spec_tokens_details rid routed_experts_start_len
    sampling_logprobs_mode separate_reasoning session_id session_params stop_regex stream_reasoning task thinking
    use_audio_in_video video_config watermark background include input instructions max_output_tokens max_tool_calls
    metadata previous_response_id reasoning service_tier store text truncation max_new_tokens

    dynatemp_range dynatemp_exponent top_n_sigma xtc_probability xtc_threshold typical_p repeat_last_n repeat_penalty
    dry_multiplier dry_base dry_allowed_length dry_penalty_last_n dry_sequence_breakers mirostat mirostat_tau
    mirostat_eta n_predict n_keep n_discard n_probs min_keep grammar grammar_lazy grammar_triggers preserved_tokens
    reasoning_format reasoning_in_content thinking_forced_open samplers speculative.n_max speculative.n_min
    speculative.p_min speculative.type timings_per_token post_sampling_probs backend_sampling lora cache_prompt
    return_tokens return_progress n_indent n_cmpl n_cache_reuse t_max_predict_ms t_max_prompt_ms response_fields
    parse_tool_calls id_slot

    format keep_alive think options template context raw images system width height steps numa num_ctx num_batch num_gpu
    main_gpu low_vram f16_kv logits_all vocab_only use_mmap use_mlock embedding_only num_thread num_keep num_predict
    tfs_z penalize_newline
""".split()
"""The request fields of vLLM (chat and completions), SGLang 0.5.23, llama.cpp's server and ollama 0.6.3."""

NO_VALUE: list[Any] = [{"a": [1]}, "x", 3.5, -7, ["x"], True, False, 0]


@pytest.mark.parametrize("api", PATHS)
def test_every_field_of_other_servers_is_known_and_does_what_its_table_says(api):
    """Refused: by name, but for values that ask for nothing. Without effect: whatever its value, the same request."""
    done, without, refused = known.DONE[api], known.WITHOUT_EFFECT[api], known.REFUSED[api]
    plain = outcome(api, {})
    for name in sorted({*FOREIGN, *others.REFUSED, *others.WITHOUT_EFFECT}):
        assert (name in done) + (name in without) + (name in refused) == 1, name
        for value in NO_VALUE if name not in done else ():
            found = outcome(api, {name: value})
            asks = name in refused and json.dumps(value) not in refused[name]
            special = {"best_of", "previous_response_id", "conversation"}
            if asks and name not in special:
                instead = known.INSTEAD[api].get(name) or others.instead(name, api)
                assert found == f"{name} is not supported" + (f"; use {instead}" if instead else "")
                assert "/v1/" in instead or instead.split(".")[0] not in refused, f"{name}: {instead} is refused, too"
            elif not asks:
                assert found == plain, (name, value)


@pytest.mark.parametrize("api", ["chat", "completions"])
def test_lengths_by_other_names(api):
    """One length under four names; -1 stands for none where llama.cpp and Ollama have it so."""
    wanted = outcome(api, {"max_tokens": 7})
    assert wanted != outcome(api, {})
    for name in ("n_predict", "num_predict", "max_new_tokens"):
        assert outcome(api, {name: 7}) == wanted and outcome(api, {name: -1}) == outcome(api, {}), name
        assert name in outcome(api, {name: -2})
    assert "max_tokens is not" in outcome(api, {"max_tokens": -1})


def test_limits_of_reasoning_by_other_names():
    wanted = outcome("chat", {"thinking_token_budget": 7})
    assert wanted[0].max_thinking == 7 and outcome("chat", {"thinking_token_budget": 0})[0].max_thinking == 0
    for name in BUDGETS:
        assert outcome("chat", {name: 7}) == wanted and outcome("chat", {name: -1}) == outcome("chat", {})
        assert name in outcome("chat", {name: "7"})


@pytest.mark.parametrize("api", PATHS)
def test_what_another_api_has_another_name_for(api):
    for name, instead in known.INSTEAD[api].items():
        found = outcome(api, {name: {"a": [1]}})
        assert found == f"{name} is not supported; use {instead}"


def test_the_best_of_as_many_as_are_returned():
    for fields in ({"best_of": 1}, {"best_of": 3, "n": 3}, {"best_of": None}):
        assert not isinstance(outcome("completions", fields), str)
    for fields in ({"best_of": 2}, {"best_of": 3, "n": 2}):
        assert outcome("completions", fields) == "best_of is not supported; use n"


COUNTS: Counter[str] = Counter()


@st.composite
def requests(draw):
    api = draw(st.sampled_from(sorted(PATHS)))
    names = draw(st.lists(st.sampled_from(PUBLIC[api].split()), unique=True, max_size=5))
    names += [draw(st.sampled_from(sorted(OTHERS)))] if draw(st.integers(0, 19)) == 0 else []
    return api, {
        name: OTHERS[name] if name in OTHERS else draw(st.sampled_from(values_of(api, name))) for name in names
    }


@pytest.mark.thorough
@settings(max_examples=2000)
@given(requests())
def test_no_field_that_changes_an_answer_is_passed_over(drawn):
    """2,000 requests: one without its fields of no effect is the same request; each other field is seen in what
    becomes of it, is refused by its name, or asks for what happens anyway."""
    api, fields = drawn
    found = outcome(api, fields)
    quiet = {name: value for name, value in fields.items() if name not in known.WITHOUT_EFFECT[api]}
    assert outcome(api, quiet) == found
    COUNTS["refused" if isinstance(found, str) else "done"] += 1
    if isinstance(found, str):
        assert any(name in found for name in quiet), found
        return
    for name, value in quiet.items():
        raw = "".join(json.dumps(value, ensure_ascii=False).split())
        if name in known.REFUSED[api]:
            neutral = (
                value is None or raw in known.REFUSED[api][name] or (name == "best_of" and value == fields.get("n"))
            )
            assert neutral, (name, raw)
        elif name in OTHERS:
            raise AssertionError(f"{name} was let through")


def test_some_were_done_and_some_refused():
    if COUNTS:  # the test before ran in this process
        assert min(COUNTS["done"], COUNTS["refused"]) > 200


def test_a_thread_is_refused_with_the_code_that_anthropics_runner_falls_back_on():
    """anthropic 2.14: error.details.error_code; it sends the request again without the thread."""
    with pytest.raises(Refused) as refused:
        read(PATHS["messages"], {**ASKS["messages"], "thread": {"type": "create"}})
    assert refused.value.extra == {"details": {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}}
    with pytest.raises(Refused) as refused:
        read(PATHS["messages"], {**ASKS["messages"], "container": "c"})
    assert not refused.value.extra
