"""Record every named intermediate of a forward pass, and compare them op by op with another engine's (blame).

A point is a named intermediate, such as "Qcur" of layer 3; an op computes a point from earlier ones.

ops       graph of the pass: inputs, formula and weight tensors of each point
record    write our own intermediates to a safetensors file
dumps     read other engines' files: npz, safetensors, raw folders
names     map another engine's tensor names to our points: presets and user tables
theirs    another engine's values, in our shapes, by point and layer
forcing   run our pass with the other engine's values substituted at every dumped point
budget    how far an op's result may be off by float noise, storage and flipped roundings
blame     the ops that are off by more than that
patterns  describe in words where two arrays differ
causes    the known mistake that reproduces the error
constants the wrong value of a model constant that reproduces it
plan      the dump to make after the diagnosis "unknown"
report    tables and JSON
"""
