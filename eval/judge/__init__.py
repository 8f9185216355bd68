"""Judge answers that other programs asked for: read their logs, grade by the pack's rules, write a log of ours.

``sources`` finds which program made a file: ``inspect_ai`` (its .json and .eval), ``lm_eval`` (logged samples) and
``ds4`` (traces of its own evaluation) read it into ``Answer`` s. ``match`` finds each answer's question in the pack.
``judged`` makes the log and says where the other program's score differs; ``export`` writes a log for inspect_ai.
"""
