"""An HTTP server for one engine, compatible with OpenAI's and Anthropic's APIs, to test real agent clients against it.

Modules, in the order in which a request passes through them:

listen      the process: sockets, signals, graceful shutdown
protocol    a connection: deadlines, size limits, a close that does not lose the response
app         routes, access control (auth), the wording of errors (refusals)
endpoint    the handler of generating endpoints: body (limits), turn, events (mailbox), answer, slow and lost clients
plain       endpoints without generation: models, tokens, health, metrics, the page to chat (chat.html)
apis/       one module per API: converts requests to turns and events to answers (interface: api)
worker      the inference thread: answers under way, cancellation, events (turn); a fair queue (queue) in front of it
schedule    which of the answers under way computes next
sequences   cached prefixes: evaluated conversations that a later prompt can continue
exchange    the record of one request, and its watchers: logs, metrics, trace
service     state shared by all routes

constrain   answers constrained to a JSON schema, a grammar, or chosen tools
tools       memory of tool calls by id, also on disk, so that the history is rendered as the model wrote it
"""
