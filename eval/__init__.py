"""ds4-eval: hard questions to an engine, graded, with error bars.

    ds4-eval --target local:MODEL.gguf -o run.jsonl        all questions of the default pack, with a live screen
    ds4-eval --target http://127.0.0.1:8000/v1 --plain     any OpenAI-compatible server, as a log
    ds4-eval compare before.jsonl after.jsonl              the same questions under two engines

``packs`` holds the questions, ``prompt`` what a model is asked, ``grading`` what its answer is worth, ``runner`` does
it, ``log`` keeps every sample, ``scores`` says what they add up to; ``tui`` and ``plain`` show it.
"""
