"""Text: between messages and token ids, in both directions.

    byte_level  the printable alphabet that stands for raw bytes in the vocabulary
    splits      the two pre-tokenizers: the Unicode form (default) and ds4's own rules
    tokenizer   vocabulary and merges -> encode, decode
    stream      text as it is generated: whole characters only, stop strings
    protocol    the seven control strings and the DSML tags
    chat        messages -> prompt; thinking modes; the tool prompt
    dsml        tool calls -> markup
    dsml_parser markup -> tool calls, fed in pieces of any size
    rawjson     JSON text that keeps its exact bytes

Nothing here imports the model, and nothing is imported until it is used.
"""
