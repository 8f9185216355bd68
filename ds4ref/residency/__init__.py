"""A cache of routed experts, for models larger than memory: which experts stay in memory, and reading the others from
the file before they are needed.

``contents`` decides which experts stay, without reading anything; ``readers`` has the threads that read; ``resident``
joins both and is what a running model calls, through ``archs.experts``; ``hotlist`` is the file that names the experts
to load at the start.
"""
