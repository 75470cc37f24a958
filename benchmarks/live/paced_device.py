"""One emulated device in its own process: paced work for some seconds, or a shaped download."""

import asyncio
import json
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from melisma import axon
from melisma.live.learner.device import Device
from melisma.live.learner.learner_settings import EmulatedDevice

PACED_S = 5.0
FETCHED_BYTES = {15e6: 4_000_000, 300e6: 60_000_000}
FAST, SIDE = 1e15, 128


def pace(share: float, seconds: float) -> dict[str, float]:
    """Work in pieces of about one batch, with a pause after each."""
    device = Device(EmulatedDevice(share, FAST, FAST, 0.0))
    matrix = np.ones((SIDE, SIDE), np.float32)
    for _ in range(50):
        matrix @ matrix
    device.start_compute()
    began, used_before_s, pieces = time.monotonic(), time.process_time(), 0
    while time.monotonic() < began + seconds:
        for _ in range(10):
            matrix @ matrix
        pieces += 1
        device.throttle()
    passed_s = time.monotonic() - began
    return {
        "passed_s": passed_s,
        "used_s": time.process_time() - used_before_s,
        "pieces": pieces,
    }


def link(bps: float, size_bytes: int) -> dict[str, float]:
    """Download one file as a learner does; another thread of this process serves it."""
    with TemporaryDirectory(prefix="benchmark-link-") as name:
        path = Path(name) / "file"
        path.write_bytes(bytes(size_bytes))
        return asyncio.run(_serve(path, Device(EmulatedDevice(1.0, bps, bps, 0.0))))


async def _serve(path: Path, device: Device) -> dict[str, float]:
    async with axon.Worker(port=0, files=lambda *_: path).listening() as address:
        return await asyncio.to_thread(_fetch, address, device)


def _fetch(address: str, device: Device) -> dict[str, float]:
    orchestrator, total_bytes = axon.connect(address), 0
    began = time.monotonic()
    device.start_download()
    for piece in axon.fetch(orchestrator, "file", 0):
        device.add_downloaded(len(piece))
        total_bytes += len(piece)
    return {"passed_s": time.monotonic() - began, "bytes": total_bytes}


def main() -> None:
    """`python -m benchmarks.live.paced_device pace SHARE SECONDS` or `link BPS BYTES`."""
    mode, rate, amount = sys.argv[1:]
    result = pace(float(rate), float(amount)) if mode == "pace" else link(float(rate), int(amount))
    print(json.dumps(result))


if __name__ == "__main__":
    main()
