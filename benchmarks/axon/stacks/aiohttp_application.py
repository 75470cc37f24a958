"""aiohttp as its documentation shows it: an application with a route."""

from aiohttp import web

from benchmarks.axon.stacks.aiohttp_server import echo


def serve(port: int) -> None:
    application = web.Application(client_max_size=1 << 40)
    application.router.add_post("/", echo)
    web.run_app(application, host="127.0.0.1", port=port, access_log=None, print=None)
