"""HTTP/1.1 heads: written ones are read back, ambiguous ones are refused."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from melisma.axon.transport.http import (
    MAX_HEAD_BYTES,
    Request,
    parse_request,
    parse_response,
    request_head,
    response_head,
)
from melisma.axon.transport.interface import ReceiveBuffer
from melisma.errors import MalformedError, SettingError

names = st.from_regex(r"\A[a-z][a-z0-9-]{0,20}\Z").filter(
    lambda name: name not in ("connection", "content-length", "transfer-encoding", "upgrade")
)
contents = st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=30)
headers = st.dictionaries(names, contents, max_size=8)
paths = st.from_regex(r"\A/[A-Za-z0-9/_.~-]{0,40}\Z")
methods = st.sampled_from(["DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT", "TRACE"])


@given(methods, paths, headers, st.integers(0, 1 << 60))
def test_a_request_is_read_as_it_was_written(
    method: str, path: str, lines: dict[str, str], size: int
) -> None:
    lines["content-length"] = str(size)
    request = parse_request(request_head(method, path, lines))
    assert request == Request(method, path, {}, lines, size, True)


@given(st.sampled_from([200, 202, 400, 404, 500, 507, 599]), headers, st.integers(0, 1 << 60))
def test_a_response_is_read_as_it_was_written(
    status: int, lines: dict[str, str], size: int
) -> None:
    lines["content-length"] = str(size)
    response = parse_response(response_head(status, lines))
    assert (response.status, response.headers, response.body_bytes) == (status, lines, size)


@given(st.binary(max_size=200))
def test_bytes_are_a_head_or_malformed(data: bytes) -> None:
    for parse in (parse_request, parse_response):
        for head in (data, data + b"\r\n\r\n", b"GET / HTTP/1.1\r\n" + data + b"\r\n\r\n"):
            with suppress(MalformedError):
                assert parse(head).body_bytes >= 0


@given(st.data())
def test_a_head_with_a_byte_changed_is_a_head_or_malformed(data: st.DataObject) -> None:
    head = bytearray(b"POST /rpc/f HTTP/1.1\r\nhost: a:1\r\ncontent-length: 5\r\n\r\n")
    head[data.draw(st.integers(0, len(head) - 1))] = data.draw(st.integers(0, 255))
    with suppress(MalformedError):
        assert parse_request(bytes(head)).body_bytes >= 0


def test_a_head_cut_off_at_any_byte_is_malformed() -> None:
    request = b"POST /rpc/f HTTP/1.1\r\ncontent-length: 5\r\n\r\n"
    response = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n"
    for head, parse in ((request, parse_request), (response, parse_response)):
        for length in range(len(head)):
            with pytest.raises(MalformedError):
                parse(head[:length])


@pytest.mark.parametrize(
    "head",
    [
        b"\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET /\r\n\r\n",
        b"GET / HTTP/2.0\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\n",
        b"get / HTTP/1.1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\r\n\r\n",
        b"GET / HTTP/1.1\r\nno colon\r\n\r\n",
        b"GET / HTTP/1.1\r\nname : space\r\n\r\n",
        b"GET / HTTP/1.1\r\na: b\r\n folded\r\n\r\n",
        b"GET / HTTP/1.1\r\na: b\0c\r\n\r\n",
        b"GET / HTTP/1.1\r\na: b\rc\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\n\nGET /second HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\na: b\n\nGET /second HTTP/1.1\r\n\r\n",
    ],
)
def test_invalid_http_is_malformed(head: bytes) -> None:
    with pytest.raises(MalformedError, match=r"not an HTTP/1\.1 head"):
        parse_request(head)


@pytest.mark.parametrize(
    "lines",
    [
        ["content-length: 5", "content-length: 5"],
        ["content-length: 5", "content-length: 6"],
        ["content-length: 5", "transfer-encoding: chunked"],
        ["transfer-encoding: chunked", "content-length: 5"],
        ["transfer-encoding: identity", "content-length: 5"],
        ["transfer-encoding: chunked"],
        ["content-length: 5, 5"],
        ["content-length: -5"],
        ["content-length: +5"],
        ["content-length: 0x5"],
        ["content-length: 5_0"],
        ["content-length: 5 0"],
        ["content-length:"],
        [f"content-length: {1 << 64}"],
    ],
    ids=" & ".join,
)
def test_a_body_of_uncertain_length_is_malformed(lines: list[str]) -> None:
    rest = "".join(f"{line}\r\n" for line in lines) + "\r\n"
    with pytest.raises(MalformedError):
        print(parse_request(f"POST / HTTP/1.1\r\n{rest}".encode()).body_bytes)
    with pytest.raises(MalformedError):
        print(parse_response(f"HTTP/1.1 200 OK\r\n{rest}".encode()).body_bytes)


def test_repeated_headers_are_joined() -> None:
    head = b"GET / HTTP/1.1\r\nAuthorization: Bearer a\r\nauthorization: Bearer b\r\n\r\n"
    assert parse_request(head).headers == {"authorization": "Bearer a, Bearer b"}


def test_paths_and_queries_are_parsed() -> None:
    request = parse_request(b"GET /calls/gr%C3%B6%C3%9Fe?wait_s=5&x=%20 HTTP/1.1\r\n\r\n")
    assert (request.path, request.query) == ("/calls/größe", {"wait_s": "5", "x": " "})


@pytest.mark.parametrize(
    ("head", "keep"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", True),
        (b"GET / HTTP/1.1\r\nconnection: close\r\n\r\n", False),
        (b"POST / HTTP/1.1\r\ncontent-length: 5\r\nconnection: Close\r\n\r\n", False),
        (b"GET / HTTP/1.0\r\n\r\n", False),
        (b"GET / HTTP/1.0\r\nconnection: keep-alive\r\n\r\n", True),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n", True),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n", False),
        (b"HTTP/1.1 204 No Content\r\n\r\n", True),
        (b"HTTP/1.1 204 No Content\r\nconnection: close\r\n\r\n", False),
        (b"HTTP/1.1 200 OK\r\n\r\n", False),  # its body ends with the connection
    ],
)
def test_connections_are_kept_alive_by_default(head: bytes, keep: bool) -> None:
    parse = parse_response if head.startswith(b"HTTP") else parse_request
    assert parse(head).keep_alive is keep


def test_an_upgrade_is_a_head_like_any_other() -> None:
    head = b"GET / HTTP/1.1\r\nconnection: upgrade\r\nupgrade: axon-relay\r\n\r\n"
    assert parse_request(head).headers["upgrade"] == "axon-relay"


@pytest.mark.parametrize(
    ("target", "value"),
    [("/\r\nx: y", ""), ("/", "a\r\nx: y"), ("/", "a\nx"), ("/", "a\0"), ("/", "密"), ("/密", "")],
)
def test_header_injection_is_refused(target: str, value: str) -> None:
    with pytest.raises(
        SettingError, match=r"HTTP headers do not allow|not allowed in HTTP headers"
    ):
        request_head("GET", target, {"authorization": value})


# Heads as they come in from a connection.


def poured(inbox: ReceiveBuffer, data: bytes) -> bytes:
    """Fill the buffer and return the bytes that did not fit."""
    space = inbox.free_space()
    count = min(len(data), space.nbytes)
    space[:count] = data[:count]
    inbox.commit(count)
    return data[count:]


@given(st.lists(st.binary(max_size=3000), max_size=6), st.integers(1, 1000))
def test_heads_and_bodies_are_read_in_order_from_any_segmentation(
    bodies: list[bytes], portion: int
) -> None:
    pending = b"".join(b"head %d\r\n\r\n" % len(body) + body for body in bodies)
    inbox = ReceiveBuffer()

    def more() -> None:
        nonlocal pending
        pending = poured(inbox, pending[:portion]) + pending[portion:]

    for body in bodies:
        while (head := inbox.take_head()) is None:
            more()
        assert head == b"head %d\r\n\r\n" % len(body)
        received = bytearray(len(body))
        filled = 0
        while filled < len(body):
            filled += inbox.take_into(memoryview(received)[filled:])
            more()
        assert received == body
    assert not pending
    assert not len(inbox)


def test_a_head_over_the_maximum_size_is_malformed() -> None:
    inbox = ReceiveBuffer()
    assert poured(inbox, b"x" * (MAX_HEAD_BYTES - 4)) == b""
    assert inbox.take_head() is None
    assert poured(inbox, b"\r\n\r\n") == b""
    head = inbox.take_head()
    assert head is not None
    assert len(head) == MAX_HEAD_BYTES
    assert poured(inbox, b"x" * MAX_HEAD_BYTES) == b""
    with pytest.raises(MalformedError, match=f"exceeds {MAX_HEAD_BYTES} bytes"):
        inbox.take_head()
