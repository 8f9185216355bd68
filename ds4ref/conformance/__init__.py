"""Conformance of a server to what real clients need: the tester behind ``ds4-server smoke``.

Without ``--url`` it starts our server on the embedded model, as a process, and every client has to pass. With ``--url``
it tests any server in the same way. It speaks HTTP only and imports no server and no command.

clients    the table of clients and versions
checks/    plain HTTP, one small check at a time: a name, an expectation, what came instead
talk       requests to a server and their answers
probes/    scripts that run in a client's own interpreter and import nothing of ours
agents     terminal agents: configuration, task, outcome
harnesses  evaluation harnesses as clients
install    clients in the user's cache
servers    our servers as processes
results    outcomes as a table and as JSON
page       the same as a page of the documentation
"""
