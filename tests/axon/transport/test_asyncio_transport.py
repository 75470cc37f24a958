"""The transport over asyncio."""

import asyncio
from typing import Any

from melisma.axon.transport.asyncio_transport import AsyncioTransport
from melisma.axon.transport.http import MAX_HEAD_BYTES


class PausableTransport(asyncio.Transport):
    """Records whether reading is paused."""

    paused = False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        del name
        return default

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        del high, low

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False


def feed(protocol: AsyncioTransport, data: bytes) -> None:
    """Pass on decrypted bytes as TLS of Python 3.10 does, whether reading is paused or not."""
    while data:
        buffer = protocol.get_buffer(len(data))
        assert buffer.nbytes
        count = min(buffer.nbytes, len(data))
        buffer[:count] = data[:count]
        protocol.buffer_updated(count)
        data = data[count:]


async def test_all_that_tls_has_decrypted_is_kept_while_reading_is_paused() -> None:
    protocol, transport = AsyncioTransport(), PausableTransport()
    protocol.connection_made(transport)
    data = bytes(range(256)) * 1024  # as much as asyncio reads at once
    feed(protocol, data)
    assert transport.paused
    assert protocol.take_buffered(100) == data[:100]
    read = bytearray(len(data) - 100)
    await protocol.read_into(memoryview(read))
    assert read == data[100:]
    protocol.resume_reading()
    assert not transport.paused
    # The memory is as small as before.
    assert protocol.get_buffer(1).nbytes == MAX_HEAD_BYTES
