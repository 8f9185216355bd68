"""The layers of one model over several machines, on Dask.

    layout      which worker has which layers: by hand, or by bytes
    digest      whether a worker's file is the coordinator's
    stage       some consecutive layers with their caches, in one process
    actor       a stage as a Dask actor; streams go from worker to worker
    history     what a sequence consists of, so that lost workers' caches are made again, to the bit
    cache       a sequence whose caches lie on the stages
    model       the coordinator's model, which sessions use like any other
    workers     the coordinator's side of the actors; a stage that dies or hangs becomes one line
    connect     a client of a Dask scheduler

A worker maps the file itself and touches only its layers' bytes. Left out: other backends than cpu and reference,
families without hyper-connection streams, drafts, and hooks, which want all layers in one process.
"""
