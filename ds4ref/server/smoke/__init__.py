"""Real clients against a server, and a server against what real clients need: ``ds4-server smoke``.

Two questions with one harness. Without ``--url`` ours is started on the embedded model, in a process of its own, and
every client has to come through. With ``--url`` any server is asked the same.

clients    which clients there are, in which versions: the one table
checks/    what plain HTTP shows, check by check: every one has a name, an expectation and a line on what came instead
talk       requests to a server, each once, and what their answers were
probes/    scripts that run in a client's own interpreter; they know nothing of this package
agents     agents at a terminal: their configuration, the task, what counts as done
install    clients in the user's cache
servers    our servers as processes
scripted   one of them that says what an agent has to hear, over the embedded model
results    what was found, as a table, as JSON
page       the same as a page of the documentation

It is inside ``server`` since it tests that, starts that, and is a command of it; it imports nothing of it but the
worker's hook for ``scripted``, and would test another server without.
"""
