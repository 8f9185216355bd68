"""Questions that were made elsewhere, from files that the user has, as a pack of the user's own.

``shapes`` says which shape a file has and reads it: ``ds4`` takes ds4's C source (``clexer``, ``ctable``), ``gpqa``,
``supergpqa``, ``aime`` and ``lm_eval`` take the records that ``tables`` finds in CSV and JSON Lines. ``collect`` makes
one pack of several files. Nothing imported enters this repository.

A damaged file is refused with its line. A record that does not say beyond doubt what is asked and what is right is left
out, and counted by its reason.
"""
