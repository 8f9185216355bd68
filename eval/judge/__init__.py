"""Judge answers that other programs asked for: read their logs, grade by the pack's rules, write a log of ours.

``sources`` reads logs of inspect_ai, logged samples of lm-evaluation-harness and traces of ds4's own evaluation.
``match`` finds each answer's question in the pack. ``judged`` is ``ds4-eval judge``: it makes the log and says where
the other program's score differs.
"""
