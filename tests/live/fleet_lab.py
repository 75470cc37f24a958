"""`melisma orchestrate` and `melisma join` as processes on the machines of a `NetworkLab`."""

import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from tests.live.network_lab import Host

PROXY = """
import socket, sys, threading, time
target, every_s = (sys.argv[1], int(sys.argv[2])), float(sys.argv[3])
server = socket.create_server(("", int(sys.argv[2])))
def pump(source, sink):
    try:
        while piece := source.recv(65536):
            sink.sendall(piece)
    except OSError:
        pass
    for end in (source, sink):
        try:
            end.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
def cut(*ends):
    time.sleep(every_s)
    for end in ends:
        try:
            end.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
print("ready", flush=True)
while True:
    caller, _ = server.accept()
    worker = socket.create_connection(target)
    for job in ((pump, caller, worker), (pump, worker, caller), (cut, caller, worker)):
        threading.Thread(target=job[0], args=job[1:], daemon=True).start()
"""
"""Forwards to HOST PORT, and cuts each connection after some seconds."""


class Process:
    """A command on a machine of the lab, whose output is collected."""

    def __init__(self, host: Host | None, command: list[str], home: Path, cwd: Path) -> None:
        home.mkdir(parents=True, exist_ok=True)
        self.output: list[str] = []
        self._process = subprocess.Popen(
            [*(host.prefix if host else []), *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=cwd,
            env=os.environ | {"MELISMA_HOME": str(home), "OMP_NUM_THREADS": "1"},
        )
        self.pid = self._process.pid
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.output.append(line.rstrip("\n"))

    @property
    def text(self) -> str:
        """All output so far."""
        return "\n".join(self.output)

    def wait_for(self, pattern: str, timeout_s: float = 60.0) -> re.Match[str]:
        """Wait until the output matches a pattern."""
        end_at = time.monotonic() + timeout_s
        while True:
            if match := re.search(pattern, self.text):
                return match
            ended = self._process.poll() is not None
            assert not ended, f"ended with {self._process.returncode}:\n{self.text}"
            assert time.monotonic() < end_at, f"no {pattern!r} within {timeout_s} s:\n{self.text}"
            time.sleep(0.05)

    @property
    def ended(self) -> bool:
        """Whether the process has ended."""
        return self._process.poll() is not None

    def wait(self, timeout_s: float = 120.0) -> int:
        """Wait for the end; return the exit code."""
        code = self._process.wait(timeout_s)
        self._reader.join(10)
        return code

    def signal(self, number: int) -> None:
        """Send a signal to the process."""
        self._process.send_signal(number)

    def end(self) -> None:
        """Kill the process if it still runs."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        self._reader.join(10)
        if self._process.stdout is not None:
            self._process.stdout.close()


class FleetLab:
    """Starts commands in a folder of one test, and ends them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._processes: list[Process] = []

    def start(self, host: Host | None, name: str, command: list[str]) -> Process:
        """Start a command; `name` is its home, that of one machine's user."""
        process = Process(host, command, self.folder / f"home-{name}", self.folder)
        self._processes.append(process)
        return process

    def melisma(self, host: Host | None, name: str, *arguments: str, code: str = "") -> Process:
        """Start `melisma` on a machine; its process runs `code` first."""
        code = f"{code}\nfrom melisma.cli import main; main()"
        return self.start(host, name, [sys.executable, "-c", code, *arguments])

    def proxy(self, host: Host, target: str, port: int, every_s: float) -> Process:
        """Start a proxy that cuts each connection after some seconds."""
        command = [sys.executable, "-c", PROXY, target, str(port), str(every_s)]
        process = self.start(host, f"proxy-{host.name}", command)
        process.wait_for("ready")
        return process

    def close(self) -> None:
        """End all processes that still run."""
        for process in self._processes:
            process.end()


def wait_until(condition: Callable[[], bool], timeout_s: float = 30.0) -> None:
    """Wait until a condition holds."""
    end_at = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end_at
        time.sleep(0.05)
