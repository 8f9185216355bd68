"""Runs one model on several machines: each has some consecutive layers. Machines communicate through Dask.

The process that the user started is the coordinator; it sends instructions to the workers. A worker's layers are a
stage. The state between two layers goes from one stage to the next: the residual streams (hyper-connections) and, in
V4.1, the weights by which they are read and the input of a layer whose rows are needed further on.

    layout      which worker has which layers: chosen by hand, or by size
    digest      checks that a worker's model file is the coordinator's
    stage       some consecutive layers with their caches, in one process
    actor       a stage as a Dask actor, which sends its streams to the next worker
    history     of what a sequence consists, so that caches on a lost worker can be computed again, bit for bit
    cache       a sequence whose caches are on the stages
    model       the coordinator's model, which sessions use like any other
    workers     the coordinator's side of the actors; detects stages that die or hang
    open        opens a model on a cluster
    connect     connects to a Dask scheduler

A worker maps the model file itself and reads only the bytes that its layers need. Not supported: backends other than
cpu and reference, models without hyper-connections, drafts, and hooks, which need all layers in one process.
"""
