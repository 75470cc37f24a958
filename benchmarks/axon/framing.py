"""A body after eight bytes of length, on a blocking socket: a lower bound on the cost of a call."""

import socket

from benchmarks.axon import buffers

LENGTH_BYTES = 8
FIRST_BYTES = 1024


def connect(port: int) -> socket.socket:
    """Open a loopback connection without Nagle's algorithm."""
    connection = socket.create_connection(("127.0.0.1", port))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def send(connection: socket.socket, body: bytes | memoryview) -> None:
    """Send one body; the length and the first bytes share a packet."""
    view = memoryview(body)
    length = len(view).to_bytes(LENGTH_BYTES, "big")
    connection.sendall(length + view[:FIRST_BYTES])
    connection.sendall(view[FIRST_BYTES:])


def receive(connection: socket.socket) -> memoryview:
    """Receive one body into a buffer of its length."""
    length = int.from_bytes(_receive(connection, LENGTH_BYTES), "big")
    return _receive(connection, length)


def echo(connection: socket.socket) -> None:
    """Send back every body until the other side closes the connection."""
    with connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            while True:
                send(connection, receive(connection))
        except ConnectionError:
            return


def _receive(connection: socket.socket, length: int) -> memoryview:
    body = buffers.empty(length)
    done = 0
    while done < length:
        received = connection.recv_into(body[done:])
        if not received:
            raise ConnectionResetError("the other side closed the connection")
        done += received
    return body
