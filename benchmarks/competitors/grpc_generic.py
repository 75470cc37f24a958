"""Shared by both gRPC modules: unary calls of raw bytes, generic handlers, no message limit."""

from collections.abc import Callable
from typing import Any

import grpc  # type: ignore[import-untyped]

from benchmarks.competitors import arrays

OPTIONS = [
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
]


def small(request: bytes) -> bytes:
    """Decode and encode a small text."""
    return request.decode().encode()


def echo(request: bytes) -> bytes:
    """Decode and encode an array."""
    return arrays.encode(arrays.decode(request))


def handlers(small: Callable[..., Any], echo: Callable[..., Any]) -> Any:
    """Return a generic handler for the two functions."""
    methods = {
        "small": grpc.unary_unary_rpc_method_handler(small),
        "echo": grpc.unary_unary_rpc_method_handler(echo),
    }
    return grpc.method_handlers_generic_handler("benchmark", methods)


def calls(channel: Any) -> tuple[Any, Any]:
    """Return the two functions for a caller."""
    return channel.unary_unary("/benchmark/small"), channel.unary_unary("/benchmark/echo")
