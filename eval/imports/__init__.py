"""Make a pack of the user's own from questions that were made elsewhere.

``shapes`` detects the shape of a file and reads it: ``ds4`` reads ds4's C source (``literals``); ``gpqa``,
``supergpqa``, ``aime`` and ``lm_eval`` read the records that ``tables`` finds in CSV and JSON Lines. ``collect`` makes
one pack of several files. Nothing imported enters this repository.

A damaged file is refused, with its line. A record that does not say beyond doubt what is asked and what is right is
left out, and counted by its reason.
"""
