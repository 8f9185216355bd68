"""Scripts run by a client's own interpreter: they import the client, the standard library and ``_probe`` only.

    python openai_sdk.py OUT.jsonl URL MODEL TOKENS       API key in SMOKE_KEY

Each check's result is appended to OUT as one line of JSON at once, so that a client that hangs or crashes leaves the
earlier results.
"""
