"""Record every named intermediate of a forward pass, and compare them op by op with another engine's (blame).

ops       graph of the pass: inputs, formula and weight tensors of each point (a named intermediate)
record    write our own intermediates to a safetensors file
dumps     read other engines' files: npz, safetensors, raw folders
names     map another engine's tensor names to our points: presets and user tables
theirs    another engine's values, in our shapes, by point and layer
forcing   run our pass with the other engine's values substituted at every dumped point
budget    the error that float noise, storage and rounding flips may cause in an op
blame     the ops whose error is beyond that budget
patterns  describe in words where two arrays differ
causes    the mistake that reproduces the error
constants the wrong value of a constant that does
plan      the dump to ask for after an unknown diagnosis
report    tables and JSON
"""
