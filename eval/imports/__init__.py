"""Make a pack of questions from files that the user has.

``shapes`` detects the shape (the kind) of a file and reads it: ``ds4`` reads ds4's C source (``literals``); ``gpqa``,
``supergpqa``, ``aime`` and ``lm_eval`` read the records that ``tables`` finds in CSV and JSON Lines. ``collect`` makes
one pack of several files. No imported question is part of this repository.

A damaged file is refused, with its line. A record whose question or right answer is in doubt is left out, and counted
by the reason.
"""
