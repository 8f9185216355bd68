"""Tests whether a server offers the APIs that real clients need; the code behind ``ds4-server smoke``.

Without ``--url`` it starts ds4-server as a process, with the embedded model of random weights, and every client has to
pass. With ``--url`` it tests any server in the same way. It speaks HTTP only and imports no code of the server.

clients    the table of clients and their pinned versions
checks/    tests over plain HTTP, each with a name, an expectation, and the observed result if it fails
talk       sends requests to a server and parses the answers
probes/    scripts that test SDKs; they run in an SDK's own interpreter and import nothing of ours
agents     runs terminal agents: configuration, task, outcome
harnesses  runs lm-evaluation-harness
install    installs clients into the user's cache
servers    runs ds4-server as a process
runner     runs all chosen clients
results    outcomes as a table and as JSON
"""
