"""The ASGI application of uvicorn and granian: no framework, one buffer, no extra copies."""

from collections.abc import Awaitable, Callable
from typing import Any

Message = dict[str, Any]
CHUNK_BYTES = 1 << 20


async def echo(
    scope: Message,
    receive: Callable[[], Awaitable[Message]],
    send: Callable[[Message], Awaitable[None]],
) -> None:
    """Join the body, then send it in pieces: a server copies a whole body once more."""
    if scope["type"] != "http":
        return
    pieces, more = [], True
    while more:
        message = await receive()
        pieces.append(message["body"])
        more = message.get("more_body", False)
    body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
    length = str(len(body)).encode()
    headers = [(b"content-length", length)]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    view = memoryview(body)
    for start in range(0, max(len(body), 1), CHUNK_BYTES):
        stop = start + CHUNK_BYTES
        piece = body if len(body) <= CHUNK_BYTES else bytes(view[start:stop])
        await send({"type": "http.response.body", "body": piece, "more_body": stop < len(body)})
