"""Keys of model files that have no effect on the logits of any family, each with the reason (used by ``accounting``).

Keys and tensors of one family only are listed with it, in ``archs/NAME/published.py`` and ``archs/NAME/shape.py``.
"""

from __future__ import annotations

from .accounting import inert

CONFIG = (
    inert("describes the file", "model_type architectures _name_or_path name_or_path _model_name_or_path"
          " _commit_hash transformers_version unsloth_* _from_model_config"),
    inert("how transformers stores or runs a model; each tensor says its own type",
          "torch_dtype dtype expert_dtype moe_quant_algo use_cache return_dict return_dict_in_generate use_return_dict"
          " torchscript use_bfloat16 tf_legacy_loss *flash_attn* *attn_implementation* *experts_implementation*"
          " chunk_size_feed_forward low_cpu_mem_usage ep_size pretraining_tp output_attentions output_hidden_states"
          " output_scores output_router_logits tie_last_hidden_states"),
    inert("used in training only", "initializer_range attention_dropout hidden_dropout resid_pdrop embd_pdrop dropout"
          " router_aux_loss_coef aux_loss_alpha seq_aux router_jitter_noise gradient_checkpointing"
          " use_fused_cross_entropy keys_to_ignore_at_inference"),
    inert("token ids and lengths of text, read by the tokenizer",
          "*_token_id model_max_length tokenizer_class prefix suffix sep_token_id"),
    inert("defaults of sampling in transformers",
          "do_sample early_stopping num_beams num_beam_groups diversity_penalty temperature top_k top_p typical_p"
          " min_p repetition_penalty length_penalty no_repeat_ngram_size encoder_no_repeat_ngram_size bad_words_ids"
          " num_return_sequences remove_invalid_values exponential_decay_length_penalty suppress_tokens"
          " begin_suppress_tokens max_length min_length max_new_tokens epsilon_cutoff eta_cutoff"
          " encoder_repetition_penalty num_assistant_tokens num_assistant_tokens_schedule"
          " assistant_confidence_threshold assistant_lookbehind target_lookbehind"),
    inert("labels of classifiers", "id2label id2label.* label2id label2id.* num_labels problem_type finetuning_task"
          " task_specific_params task_specific_params.*"),
    inert("not a decoder alone", "is_encoder_decoder add_cross_attention tie_encoder_decoder", False),
    inert("a decoder", "is_decoder", True, False),  # decoders are causal in transformers either way
    inert("how quantized tensors are spread; each tensor says how it is stored",
          "quantization_config.modules_to_not_convert quantization_config.ignored_layers"
          " quantization_config.scale_fmt quantization_config.expert_dtype quantization_config.dequantize"),
)  # fmt: skip
"""Keys of config.json: those of transformers' PreTrainedConfig, and those that other programs add."""

METADATA = (
    inert("must be a model", "general.type", "model"),
    inert("layout of blocks since 2023", "general.quantization_version", 2),
    inert("place of tensor data, read by the container", "general.alignment"),
    inert("describes the file", "general.*"),
    inert("read by the tokenizer", "tokenizer.ggml.* tokenizer.chat_template tokenizer.chat_template.*"
          " tokenizer.chat_templates tokenizer.huggingface.json tokenizer.rwkv.world"),
    inert("how the file was quantized", "quantize.imatrix.* imatrix.* ds4ref.* mradermacher.*"),
    inert("which files hold the model, read by the container", "split.count split.no split.tensors.count"),
)  # fmt: skip
"""Keys of GGUF metadata that do not belong to an architecture."""
