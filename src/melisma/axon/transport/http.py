"""Heads of HTTP/1.1 messages, parsed by httptools (llhttp).

Bodies are received elsewhere, directly into their final memory: a body has a Content-Length, or it
is a stream that marks its own end.
"""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Final
from urllib.parse import parse_qsl, unquote

import httptools
import msgspec

from melisma.errors import MalformedError, SettingError

MAX_HEAD_BYTES: Final = 16384

_Parser = httptools.HttpRequestParser | httptools.HttpResponseParser
_REASONS: Final = {status.value: status.phrase for status in HTTPStatus}


class Request(msgspec.Struct, frozen=True):
    """The head of a request and the size of its body."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body_bytes: int
    keep_alive: bool


class Response(msgspec.Struct, frozen=True):
    """The head of a response and the size of its body."""

    status: int
    headers: dict[str, str]
    body_bytes: int
    keep_alive: bool


def parse_request(head: bytes) -> Request:
    """Parse the head of a request."""
    collector = _Collector()
    parser = httptools.HttpRequestParser(collector)
    _feed(parser, collector, head)
    path, _, query = collector.url.partition("?")
    return Request(
        parser.get_method().decode(),
        unquote(path),
        dict(parse_qsl(query)) if query else {},
        collector.headers,
        _body_bytes(collector.headers),
        collector.keep_alive,
    )


def parse_response(head: bytes) -> Response:
    """Parse the head of a response."""
    collector = _Collector()
    parser = httptools.HttpResponseParser(collector)
    _feed(parser, collector, head)
    size = _body_bytes(collector.headers)
    return Response(parser.get_status_code(), collector.headers, size, collector.keep_alive)


def request_head(method: str, target: str, headers: Mapping[str, str]) -> bytes:
    """Return the bytes of a request head."""
    return _head(f"{method} {target} HTTP/1.1", headers)


def response_head(status: int, headers: Mapping[str, str]) -> bytes:
    """Return the bytes of a response head."""
    return _head(f"HTTP/1.1 {status} {_REASONS.get(status, '')}", headers)


def _head(first: str, headers: Mapping[str, str]) -> bytes:
    text = first + "".join([f"\r\n{name}: {value}" for name, value in headers.items()])
    # No value may start another header line.
    if text.count("\r\n") != len(headers) or not text.replace("\r\n", "").isprintable():
        bad = next((name for name in headers if not headers[name].isprintable()), first)
        raise SettingError(
            f"{bad!r} has unprintable characters, which HTTP headers do not allow: remove them"
        )
    try:
        return f"{text}\r\n\r\n".encode("latin-1")
    except UnicodeEncodeError as error:
        raise SettingError(
            f"{error.object[error.start]!r} is not allowed in HTTP headers: use Latin-1"
        ) from None


class _Collector:
    """Collects the parts of a head from the callbacks of the parser."""

    def __init__(self) -> None:
        self.parser: _Parser | None = None
        self.version = ""
        self.url = ""
        self.headers: dict[str, str] = {}
        self.keep_alive = False

    def on_headers_complete(self) -> None:
        # Without a body, the parser resets right after this callback.
        assert self.parser is not None
        self.version = self.parser.get_http_version()
        self.keep_alive = self.parser.should_keep_alive()

    def on_url(self, url: bytes) -> None:
        self.url += url.decode("latin-1")

    def on_header(self, name: bytes, value: bytes) -> None:
        key, text = name.decode("latin-1").lower(), value.decode("latin-1")
        self.headers[key] = f"{self.headers[key]}, {text}" if key in self.headers else text


def _feed(parser: _Parser, collector: _Collector, head: bytes) -> None:
    collector.parser = parser
    try:
        parser.feed_data(head)
    except httptools.HttpParserUpgrade:
        pass
    except httptools.HttpParserError as error:
        raise MalformedError(f"the received bytes are not an HTTP/1.1 head: {error}") from error
    finally:
        collector.parser = None  # Break the reference cycle.
    if collector.version not in ("1.0", "1.1"):
        raise MalformedError(f"the received bytes are not an HTTP/1.1 head: {head[:40]!r}")


def _body_bytes(headers: Mapping[str, str]) -> int:
    if "transfer-encoding" in headers:
        raise MalformedError("Transfer-Encoding is not supported: send a Content-Length")
    return int(headers.get("content-length", "0"))
