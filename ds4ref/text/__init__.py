"""Converts between chat messages, text and token ids, in both directions.

    byte_level  the printable characters that stand for raw bytes in a byte-level vocabulary
    splits      DeepSeek's two pre-tokenizers: the original Unicode rules (default) and ds4's own
    tokenizer   vocabulary and merges -> encode, decode
    published   tokenizer.json of a checkpoint -> vocabulary and merges
    library     tokenizer.json of other families, through the `tokenizers` library
    template    chat templates that come with a model, rendered in a separate process (limited)
    stream      text as it is generated: whole characters only, stop strings
    protocol    the control strings of DeepSeek's chat format, and the DSML tags
    rendered    prompts that record which of their control strings are genuine
    chat        messages -> prompt; thinking modes; the tool prompt
    official    the same in the chat formats of later DeepSeek checkpoints (parser: official_parser)
    messages    the message lists of three APIs -> messages
    schemas     the tools of a request -> lines of the tool prompt
    dsml        tool calls -> DSML, the markup that DeepSeek writes tool calls in
    dsml_parser generated text -> reasoning, visible text and tool calls, while it is streamed (events: dsml_events)
    rawjson     JSON text that keeps its exact bytes

Nothing here imports the model, and nothing is imported until it is used.
"""
