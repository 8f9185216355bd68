"""A small HTTP server over one engine, so that real agent clients can be smoke-tested against it.

In the order in which a request meets them:

listen      the process: sockets, signals, an orderly end
protocol    a connection: deadlines, sizes, a close that is heard
app         routes; who is let in (auth), in which words errors are said (refusals)
endpoint    the one handler: body (limits), turn, events (mailbox), answer, slow and vanished clients
plain       what is answered at once: models, tokens, health, figures, the page (status.html, board)
apis/       one module an API: its requests as turns, a turn's events as its answers (api says what a module is)
worker      the inference thread: a fair queue, jobs, cancellation, events (turn)
timelines   what was evaluated before and can be gone on with
exchange    one request's life, and who watches it: logs, metrics, board, trace
service     what all of them share

constrain   answers that fit a JSON schema, a grammar, a choice of tools
tools       declared tools on the wire, exact replay of calls by their id
recall      the same from checkpoints on disk
"""
