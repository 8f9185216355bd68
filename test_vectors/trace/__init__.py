"""Trace: every named intermediate of a pass, written down (record) and held against another engine's (blame).

ops       what each point of the pass is computed from, by which formula, from which tensors
record    our own intermediates into a safetensors file
dumps     other engines' files: npz, safetensors, raw folders, llama.cpp's printouts
names     whose name is which: presets and tables of one's own
theirs    another engine's values, in our shapes, by name and layer
forcing   the pass with their values put in wherever there is one
budget    what float noise, storage and flips may do to an op
blame     which ops are beyond that
patterns  where in an array, in words
causes    the mistake or the tensor that reproduces it
report    tables and JSON
"""
