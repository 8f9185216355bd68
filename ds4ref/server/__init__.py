"""An HTTP server for one engine, compatible with OpenAI's and Anthropic's APIs, to test real agent clients against it.

Modules, in the order in which a request passes through them:

listen      the process: sockets, signals, graceful shutdown
protocol    an HTTP connection: deadlines, size limits, closing so that the client still receives its response
app         routes, access control (in auth), the wording of errors (in refusals)
endpoint    the handler of endpoints that generate text: receives the body (limits), submits the turn, sends the answer
            from the worker's events (mailbox)
plain       endpoints that generate nothing: models, tokens, health, metrics, the chat page (chat.html)
apis/       one module per API: converts JSON requests to turns, and events to JSON answers (interface: api)
worker      the inference thread: computes several answers at once, handles cancellation, reports events (turn);
            requests wait for it in a fair queue (queue)
schedule    decides which of the running answers computes next
sequences   the prefix cache: evaluated conversations that a later prompt can continue
exchange    the record of one request, and what observes it: logs, metrics, trace
service     the state that all routes share

constrain   answers constrained to a JSON schema, a grammar, or chosen tools
tools       the model's own text of its tool calls, by call id, so that a history is rendered as the model wrote it
"""
