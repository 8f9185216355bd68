"""Text: between messages and token ids, in both directions.

    byte_level  the printable alphabet that stands for raw bytes in the vocabulary
    splits      the two pre-tokenizers: the Unicode form (default) and ds4's own rules
    tokenizer   vocabulary and merges -> encode, decode
    published   tokenizer.json of a checkpoint -> vocabulary and merges
    library     tokenizer.json of other families, through the `tokenizers` library
    template    chat templates that come with a model, rendered in a process of their own (limited)
    stream      text as it is generated: whole characters only, stop strings
    protocol    the seven control strings and the DSML tags
    prompt      rendered text that knows which control strings are real
    chat        messages -> prompt; thinking modes; the tool prompt
    messages    the message lists of three APIs -> messages
    schemas     the tools of a request -> schema lines
    dsml        tool calls -> markup
    dsml_parser markup -> reasoning, text and tool calls, fed in pieces of any size (events: dsml_events)
    rawjson     JSON text that keeps its exact bytes

Nothing here imports the model, and nothing is imported until it is used.
"""
