"""A proxy that records what a device sends over TLS, in plain text and without its knowledge.

It answers with the certificate of the orchestrator, and calls the orchestrator with that of the
device: the test has the keys of both. Nothing in the process of the device is changed.
"""

import asyncio
import contextlib
import threading
from dataclasses import replace
from pathlib import Path

from melisma.axon.transport.tls import client_context, identity_fingerprint, server_context
from melisma.live.join_string import JoinString


class TlsRecorder:
    """Forwards connections of one device to an orchestrator inside a ``with``.

    `join_string` names the recorder in place of the orchestrator; `sent` is what was recorded.
    """

    def __init__(self, orchestrator: Path, device: Path, join_string: JoinString) -> None:
        self._orchestrator, self._device, self._target = orchestrator, device, join_string
        self._fingerprint = identity_fingerprint(orchestrator)
        self._sent: list[bytearray] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._started, self._ended = threading.Event(), asyncio.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)
        self._loop: asyncio.AbstractEventLoop
        self.join_string: JoinString

    @property
    def sent(self) -> bytes:
        """All that the device has sent."""
        return b"|".join(bytes(part) for part in self._sent)

    def __enter__(self) -> "TlsRecorder":
        self._thread.start()
        assert self._started.wait(30)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._ended.set)
        self._thread.join(30)

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        context = server_context(self._orchestrator, request_certificates=True)
        server = await asyncio.start_server(self._forward, "127.0.0.1", 0, ssl=context)
        self.join_string = replace(self._target, port=server.sockets[0].getsockname()[1])
        self._started.set()
        await self._ended.wait()
        server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        # Connections that were aborted are closed in the next rounds of the loop.
        for _ in range(5):
            await asyncio.sleep(0)

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        record = bytearray()
        self._sent.append(record)
        task = asyncio.current_task()
        assert task is not None
        self._tasks.append(task)
        writers = [writer]
        try:
            target_reader, target_writer = await asyncio.open_connection(
                self._target.hosts[0],
                self._target.port,
                ssl=client_context(self._fingerprint, self._device),
                server_hostname="",
            )
            writers.append(target_writer)
            await asyncio.gather(
                _copy(reader, target_writer, record), _copy(target_reader, writer, bytearray())
            )
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            for each in writers:
                each.transport.abort()


async def _copy(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, record: bytearray
) -> None:
    """Copy until the end, and record what is copied; TLS knows no half-closed connections."""
    with contextlib.suppress(OSError):
        while piece := await reader.read(1 << 16):
            record += piece
            writer.write(piece)
            await writer.drain()
    writer.close()
