"""HTTP servers and clients that all do one thing: echo a POST body.

Every server receives the whole body into one buffer before it answers, as a server that decodes an
array must, and then answers in the fastest way of its stack. None has an access log or middleware,
and only `aiohttp_application` has a router. Each module has `serve(port)`, which serves until the
process ends; `python -m benchmarks.axon.stacks MODULE PORT` calls it.
"""
