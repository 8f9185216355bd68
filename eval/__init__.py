"""ds4-eval: ask an engine hard questions, grade the answers, report scores with error bars.

    ds4-eval --target local:MODEL.gguf -o run.jsonl        all questions of the default pack, with a live screen
    ds4-eval --target http://127.0.0.1:8000/v1 --plain     any OpenAI-compatible server, as a log
    ds4-eval compare before.jsonl after.jsonl              the same questions under two engines

``packs`` reads the questions, ``prompt`` writes the messages, ``runner`` asks, ``grading`` grades, ``log`` writes every
sample, ``scores`` and ``compare`` do the statistics; ``tui`` and ``plain`` show a run, ``report`` and ``view`` a log.
"""
