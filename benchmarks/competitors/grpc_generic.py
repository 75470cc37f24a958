"""What the gRPC peers share: unary calls of raw bytes by generic handlers, no message limit."""

from collections.abc import Callable
from typing import Any

import grpc  # type: ignore[import-untyped]

from benchmarks.competitors import arrays

OPTIONS = [
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
]


def small(request: bytes) -> bytes:
    """The small function behind its bytes."""
    return request.decode().encode()


def echo(request: bytes) -> bytes:
    """The echo of an array behind its bytes."""
    return arrays.encode(arrays.decode(request))


def handlers(small: Callable[..., Any], echo: Callable[..., Any]) -> Any:
    """The two functions as a generic handler."""
    methods = {
        "small": grpc.unary_unary_rpc_method_handler(small),
        "echo": grpc.unary_unary_rpc_method_handler(echo),
    }
    return grpc.method_handlers_generic_handler("benchmark", methods)


def calls(channel: Any) -> tuple[Any, Any]:
    """The two functions as a caller has them."""
    return channel.unary_unary("/benchmark/small"), channel.unary_unary("/benchmark/echo")
