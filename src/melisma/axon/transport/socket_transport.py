"""The transport over a blocking socket."""

import socket
import ssl
import time
from collections.abc import Sequence

from melisma.axon.codec.message import Buffer
from melisma.axon.transport.interface import EndOfStreamError, ReceiveBuffer, join_small_buffers


class SocketTransport:
    """A connection over a blocking socket, plain or TLS."""

    def __init__(self, sock: socket.socket) -> None:
        self.deadline_at: float | None = None
        self._sock = sock
        self._timeout_s = sock.gettimeout()
        self._received = ReceiveBuffer()

    @property
    def buffered_bytes(self) -> int:
        return len(self._received)

    @property
    def ended(self) -> bool:
        return False  # A blocking socket detects this only when it is read.

    def take_buffered(self, count: int) -> bytearray:
        return self._received.take(count)

    async def wait_readable(self) -> bool:
        return len(self._received) > 0 or self._receive_more()

    async def read_head(self) -> bytes:
        while (head := self._received.take_head()) is None:
            if not self._receive_more():
                raise EndOfStreamError("the peer closed the connection")
        return head

    async def read_into(self, view: memoryview) -> None:
        filled = self._received.take_into(view)
        while filled < view.nbytes:
            self._set_timeout()
            received = self._sock.recv_into(view[filled:])
            if not received:
                raise EndOfStreamError(
                    f"the peer closed the connection {view.nbytes - filled} bytes early"
                )
            filled += received

    async def write(self, buffers: Sequence[Buffer]) -> None:
        if isinstance(self._sock, ssl.SSLSocket):
            for piece in join_small_buffers(buffers):
                self._set_timeout()
                self._sock.sendall(piece)
            return
        pending = [memoryview(buffer).cast("B") for buffer in buffers]
        while pending:
            self._set_timeout()
            sent = self._sock.sendmsg(pending[:64])
            while pending and sent >= pending[0].nbytes:
                sent -= pending.pop(0).nbytes
            if sent:
                pending[0] = pending[0][sent:]

    def start_tls(self, context: ssl.SSLContext, host: str) -> None:
        """Use TLS from now on."""
        self._set_timeout()
        self._sock = context.wrap_socket(self._sock, server_hostname=host)

    def peer_certificate(self) -> bytes | None:
        """Return the certificate of the peer (DER)."""
        sock = self._sock
        return sock.getpeercert(binary_form=True) if isinstance(sock, ssl.SSLSocket) else None

    def close(self) -> None:
        self._sock.close()

    def _receive_more(self) -> bool:
        self._set_timeout()
        received = self._sock.recv_into(self._received.free_space())
        self._received.commit(received)
        return received > 0

    def _set_timeout(self) -> None:
        left_s = None
        if self.deadline_at is not None:
            left_s = self.deadline_at - time.monotonic()
            if left_s <= 0:
                raise TimeoutError
        if left_s != self._timeout_s:
            self._sock.settimeout(left_s)
            self._timeout_s = left_s
