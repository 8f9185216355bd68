"""Identify what a server serves, by its behaviour alone; results are properties of ``doctor.served``.

shapes     conversations to count, and how many tokens each chat template makes of them
asking     requests with the reasoning settings of several kinds of server, and their token counts
posterior  probabilities of templates, defaults and BOS, from counts
weights    the same from log probabilities, compared with our engine's
timing     speculative decoding, from the arrival of streamed tokens
context    the context limit, from refusals of prompts that are too long
claims     what the server says about itself, and contradictions
stage      all of it, as a stage of doctor; command is ``ds4-vectors identify``
"""
