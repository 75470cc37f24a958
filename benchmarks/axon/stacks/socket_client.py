"""A minimal keep-alive client on a blocking socket; it measures every server."""

import socket
import struct

import httptools

from benchmarks.axon import buffers

HEAD_BYTES = 64 * 1024


class Client:
    """One connection; httptools parses the head, the body is received into one buffer."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # Set the timeout in the kernel: Python's timeout would poll before every read.
        limit = struct.pack("ll", 30, 0)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
        self.head = bytearray(HEAD_BYTES)
        self.head_view = memoryview(self.head)
        self.content_length = 0

    def post(self, body: bytes) -> memoryview:
        head = b"POST / HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n" % len(body)
        if len(body) < HEAD_BYTES:
            self.socket.sendall(head + body)
        else:
            self.socket.sendall(head)
            self.socket.sendall(body)
        return self._receive()

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"content-length":
            self.content_length = int(value)

    def _receive(self) -> memoryview:
        filled, end = 0, 3
        while end == 3:
            received = self.socket.recv_into(self.head_view[filled:])
            if not received:
                raise ConnectionError("the server closed the connection")
            filled += received
            end = self.head.find(b"\r\n\r\n", 0, filled) + 4
        httptools.HttpResponseParser(self).feed_data(self.head_view[:end])
        body = buffers.empty(self.content_length)
        body[: filled - end] = self.head_view[end:filled]
        done = filled - end
        while done < len(body):
            done += self.socket.recv_into(body[done:])
        return body

    def close(self) -> None:
        self.socket.close()
