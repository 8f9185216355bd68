"""Scripts that a client's own interpreter runs: they import the client, the standard library and ``_probe``, no more.

    python openai_sdk.py OUT.jsonl URL MODEL TOKENS       the key in SMOKE_KEY

Each check goes to OUT as one line of JSON as soon as it is done, so that a client that hangs or crashes leaves what it
had done.
"""
