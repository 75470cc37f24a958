"""HTTP servers and clients that all do one thing: echo a POST body.

Every server holds the whole body in one piece before it answers, as a server that decodes an
array has to, and then answers in the way that its stack does best. None has a router (but the one
that says so), an access log or middleware. Each module has `serve(port)`, which serves until it
is ended; `python -m benchmarks.axon.stacks MODULE PORT` calls it.
"""
