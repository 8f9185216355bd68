"""Tests whether a server offers the APIs that real clients need; behind ``ds4-server smoke``.

Without ``--url`` it starts ds4-server on the random model, as a process, and every client has to pass. With ``--url``
it tests any server in the same way. It speaks HTTP only and imports no server and no command.

clients    the table of clients and versions
checks/    tests over plain HTTP, each with a name, an expectation, and the observed result if it fails
talk       requests to a server and their answers
probes/    scripts that run in a client's own interpreter and import nothing of ours
agents     terminal agents: configuration, task, outcome
harnesses  lm-evaluation-harness as a client
install    installs clients into the user's cache
servers    runs ds4-server as a process
results    outcomes as a table and as JSON
"""
