"""Routed experts of a model larger than memory: which are kept there, and reading the others in time.

``policy`` and ``contents`` decide which experts stay, without reading anything, so that ``simulation`` can try them on
recorded routing. ``readers`` are the threads that read, ``resident`` joins both for a model that computes, ``hotlist``
names the experts to begin with. An architecture calls it through ``archs.experts``.
"""
