"""The reference server's own 91 checks by name, and where each is covered here.

A value is tests (``room.module.function``, several with commas), or "no: ..." and why there is none, perhaps with the
tests that show it. ``test_checks.py`` looks whether the tests are there.
"""

CHECKS = {
    # defaults and thinking controls
    "request_defaults_use_min_p_filtering": "server.test_chat_requests.test_defaults",
    "reasoning_effort_mapping": (
        "server.test_chat_requests.test_thinking, server.test_chat_requests.test_most_thinking_takes_room"
    ),
    "api_thinking_controls_parse": (
        "server.test_chat_requests.test_thinking, server.test_messages.test_thinking_as_the_reference_has_it"
    ),
    # prompt rendering
    "render_think_max_prompt_prefix": "text.test_chat.test_worked_examples",
    "render_non_thinking_prompt_closes_think": "text.test_chat.test_worked_examples",
    "render_drops_old_reasoning_without_tools": "text.test_chat.test_worked_examples",
    "render_preserves_reasoning_with_tools": "text.test_chat.test_reasoning_is_kept_everywhere_once_tools_are_involved",
    "render_chat_prompt_text_renders_tools_before_system": "text.test_chat.test_22_tools_before_system",
    # tool schemas, namespaces, tool search
    "tool_schema_order_from_anthropic_schema": "text.test_messages.test_schemas_are_verbatim",
    "tool_schema_order_from_openai_tools": "text.test_messages.test_schemas_are_verbatim",
    "tool_schema_order_from_responses_tool_search": "text.test_messages.test_rebuilt_schemas",
    "responses_function_named_tool_search_stays_function_call": "server.test_responses.test_tool_searches",
    "responses_namespace_tool_schemas_restore_wire_namespace": "server.test_responses.test_tools_of_a_namespace",
    "responses_input_tool_search_output_loads_tools": "server.test_responses_requests.test_a_search_loads_tools",
    "responses_input_tool_search_output_rejects_bad_tools": "server.test_responses_requests.test_what_is_refused",
    "responses_input_function_call_namespace_round_trips_to_dsml": (
        "server.test_responses_requests.test_a_search_loads_tools"
    ),
    "responses_output_sends_tool_search_call_item": "server.test_responses.test_tool_searches",
    "dsml_tool_args_preserve_call_order": "text.test_dsml.test_order_duplicates_and_what_follows",
    "openai_tool_args_preserve_call_order": "server.test_chat.test_arguments_keep_the_order_of_the_call",
    "anthropic_thinking_and_tool_args_preserve_call_order": (
        "server.test_messages.test_arguments_keep_the_order_of_the_call"
    ),
    # HTTP shapes
    "context_length_error_uses_protocol_standard_shape": (
        "server.test_messages.test_errors, server.test_sdks.test_errors_that_the_openai_sdk_raises, "
        "server.test_app.test_a_prompt_as_long_as_the_context_does_not_fit"
    ),
    "cors_headers_are_opt_in": "server.test_app.test_cors_is_for_those_who_ask_for_it",
    "cors_preflight_response_is_no_content": "server.test_app.test_options",
    "cors_sse_headers": "server.test_app.test_cors_is_for_those_who_ask_for_it",
    # streams
    "anthropic_live_stream_sends_incremental_blocks": "server.test_messages.test_a_tool_turn_cut_anywhere",
    "anthropic_usage_reports_cache_details": "server.test_messages.test_usage_tells_what_was_cached",
    "anthropic_tool_stream_sends_live_tool_use": (
        "server.test_messages.test_arguments_go_out_before_the_call_is_complete, "
        "server.test_messages.test_each_call_has_the_id_that_is_remembered"
    ),
    "openai_tool_stream_sends_incremental_text": (
        "server.test_chat.test_a_tool_turn_cut_anywhere, text.test_dsml_parser.test_leading_think_tag"
    ),
    "openai_stream_usage_reports_cache_details": "server.test_chat.test_usage_tells_what_was_cached",
    "responses_usage_reports_cache_details": "server.test_responses.test_usage_tells_what_was_cached",
    "openai_chat_stream_splits_reasoning_without_tools": "server.test_chat.test_a_stream_without_tools",
    "openai_tool_stream_sends_partial_arguments": "server.test_chat.test_arguments_go_out_before_the_call_is_complete",
    "openai_tool_stream_waits_for_incomplete_tool_tags": "server.test_chat.test_a_tool_turn_cut_anywhere",
    "openai_tool_stream_sends_partial_raw_arguments": (
        "no: a value that is not a string goes out when it is complete, for only then is it known to be JSON "
        "(text.test_dsml_parser.test_35_bad_json_becomes_a_string)"
    ),
    "openai_tool_stream_holds_partial_dsml_entities": (
        "text.test_dsml_parser.test_33_only_the_own_closer_is_unescaped, text.test_dsml_parser.test_cut_at_every_byte"
    ),
    "openai_tool_stream_holds_partial_utf8_arguments": (
        "server.test_chat.test_several_calls_and_one_without_arguments, text.test_dsml_parser.test_cut_at_every_byte"
    ),
    "openai_tool_stream_handles_multiple_calls": "server.test_chat.test_several_calls_and_one_without_arguments",
    "streaming_holds_partial_utf8": "text.test_stream.test_a_split_character_appears_once_and_whole",
    # output parsing
    "parse_short_dsml_and_canonical_suffix": "text.test_dsml_parser.test_38_first_bar_missing",
    "dsml_parser_recovers_loose_nested_parameters": "text.test_dsml_parser.test_37_nested_parameters",
    "tool_parse_failure_returns_recoverable_finish": "server.test_chat.test_a_call_that_is_none",
    "thinking_dsml_is_not_executable_before_think_close": "server.test_chat.test_thinking_that_never_ends_is_reasoning",
    "thinking_dsml_after_think_close_is_executable": (
        "server.test_messages.test_several_calls_and_one_without_arguments"
    ),
    "tool_checkpoint_suffix_is_future_prompt_canonical": "text.test_dsml.test_string_escape_is_minimal",
    "tool_checkpoint_minifies_json_parameters": "text.test_dsml.test_26_escapes_of_the_closing_tag",
    # tool memory and live continuation
    "tool_memory_replays_sampled_dsml": "server.test_chat.test_calls_come_back_as_the_model_wrote_them",
    "anthropic_tool_memory_replays_sampled_dsml": "server.test_tools.test_other_apis_send_the_same_ids",
    "anthropic_live_tail_renders_tool_results_only": (
        "text.test_chat.test_29_live_tail, text.test_chat.test_system_texts_in_place"
    ),
    "anthropic_tool_result_id_validation": "server.test_messages.test_results_without_their_call",
    "anthropic_full_replay_allows_unknown_live_id": "server.test_messages.test_a_full_history_needs_no_live_state",
    "anthropic_tool_use_parses_before_role": (
        "text.test_messages.test_27_anthropic, server.test_messages.test_a_full_history_needs_no_live_state"
    ),
    "tool_checkpoint_canonicalization_gate_exact_replay": (
        "no: nothing is rewritten after a turn; a timeline is known by every text that its history may be rendered as"
    ),
    "responses_live_tail_renders_tool_outputs_only": "text.test_chat.test_29_live_tail",
    "responses_tool_output_id_validation": "server.test_responses_requests.test_results_without_their_call",
    "responses_stateless_tool_replay_requires_reasoning": (
        "no: the reference only logs it; a replay without its reasoning is rendered without"
    ),
    "responses_visible_suffix_matches_client_replay": "server.test_continuation.test_turns_with_tools",
    "exact_dsml_tool_replay_can_be_disabled": "server.test_tools.test_switched_off",
    "dsml_decode_state_separates_structure_and_payload": (
        "text.test_dsml_parser.test_49_states, text.test_dsml_parser.test_state_does_not_depend_on_the_pieces"
    ),
    "tool_memory_max_ids_prunes_oldest": "server.test_tools.test_the_oldest_ids_go_first_and_use_keeps_them",
    "kv_tool_map_filters_by_dsml_text": "server.test_tools.test_only_blocks_of_the_text_are_written_down",
    "kv_tool_map_restores_before_prompt_render": (
        "server.test_tools.test_a_map_brings_the_bytes_back_before_anything_is_rendered"
    ),
    # thinking checkpoints
    "thinking_checkpoint_canonical_matches_future_prompt": "server.test_continuation.test_turns_of_a_talk",
    "thinking_canonical_empty_content": "server.test_continuation.test_turns_of_a_talk",
    "thinking_canonical_multi_turn": "server.test_continuation.test_turns_of_a_talk",
    "thinking_canonical_with_tools_preserves_reasoning": "server.test_continuation.test_turns_with_tools",
    "thinking_canonical_non_thinking_mode_noop": "server.test_continuation.test_turns_of_a_talk",
    # text utilities and state
    "tool_separator_whitespace_is_not_content": "text.test_dsml_parser.test_41_42_exact_white_space",
    "dsml_prompt_escapes_tool_supplied_text": (
        "text.test_dsml.test_result, text.test_dsml.test_string_escape_is_minimal"
    ),
    "stop_list_parses_all_sequences": "server.test_fields.test_stop_strings, text.test_stream.test_stops",
    "stop_list_streaming_holds_and_trims_stop_text": "text.test_stream.test_nothing_of_a_stop_is_shown_early",
    "json_skip_has_nesting_limit": "server.test_fields.test_nesting_has_a_limit",
    "model_metadata_clamps_completion_to_context": "server.test_plain.test_answers_are_as_long_as_the_server_allows",
    "client_socket_nonblocking_flag": (
        "no: sockets are asyncio's; what it is for is "
        "server.test_app.test_who_does_not_read_loses_the_connection_and_nobody_waits"
    ),
    "thinking_state_tracks_prompt_and_generated_tags": (
        "text.test_dsml_parser.test_whether_reasoning_is_still_open, "
        "server.test_responses_requests.test_the_end_of_thinking_is_seen_by_tokens"
    ),
    "thinking_checkpoint_remember_gate": "server.test_continuation.test_what_was_cut_off_is_not_gone_on_from",
    "tool_marker_state_ignores_orphan_end": "text.test_dsml_parser.test_lookalikes_are_text",
    "canonical_rewrite_rebuilds_when_live_tail_changes": "no: nothing is rewritten after a turn",
    # KV store
    "kv_cache_store_len_uses_configured_boundary": (
        "session.test_boundaries.test_kv_cache_store_len_uses_configured_boundary"
    ),
    "kv_cache_chat_anchor_uses_last_user_before_assistant": (
        "session.test_boundaries.test_kv_cache_chat_anchor_uses_last_user_before_assistant"
    ),
    "kv_cache_chat_anchor_ignores_multiturn_tail": (
        "session.test_boundaries.test_kv_cache_chat_anchor_ignores_multiturn_tail"
    ),
    "kv_cache_continued_uses_aligned_frontiers": (
        "session.test_boundaries.test_kv_cache_continued_uses_aligned_frontiers"
    ),
    "kv_cache_cold_store_suppresses_duplicate_continued_boundary": (
        "session.test_boundaries.test_kv_cache_cold_store_suppresses_duplicate_continued_boundary"
    ),
    "kv_cache_file_size_must_fit_budget": "session.test_directory.test_kv_cache_file_size_must_fit_budget",
    "sha1_bytes_hex_matches_known_vector": "session.test_kvc.test_sha1_bytes_hex_matches_known_vector",
    "kv_cache_lookup_uses_longest_text_prefix": "session.test_directory.test_kv_cache_lookup_uses_longest_text_prefix",
    "kv_cache_eviction_values_fresh_snapshots": "session.test_directory.test_kv_cache_eviction_values_fresh_snapshots",
    "kv_cache_eviction_protects_current_store": "session.test_directory.test_kv_cache_eviction_protects_current_store",
    "kv_cache_eviction_does_not_protect_oversize_current_store": (
        "session.test_directory.test_kv_cache_eviction_does_not_protect_oversize_current_store"
    ),
    "kv_cache_eviction_score_decays_stale_hits": (
        "session.test_directory.test_kv_cache_eviction_score_decays_stale_hits"
    ),
    "kv_cache_eviction_decayed_hits_tie_break_by_age": (
        "session.test_directory.test_kv_cache_eviction_decayed_hits_tie_break_by_age"
    ),
    "kv_cache_eviction_keeps_aligned_continued_frontiers": (
        "session.test_directory.test_kv_cache_eviction_keeps_aligned_continued_frontiers"
    ),
}
