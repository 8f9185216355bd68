"""A small HTTP server over one engine, so that real agent clients can be smoke-tested against it.

app        routes, limits, errors: everything that is HTTP
apis/      one module an API: its requests as turns, a turn's events as its answers
turn       a request, whatever API it came through
worker     the inference thread: a fair queue, cancellation, events
timelines  what was evaluated before and can be gone on with
constrain  answers that fit a JSON schema, a grammar, a choice of tools
tools      declared tools on the wire, exact replay of calls by their id
"""
