"""One node in a process of its own."""

import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec

from melisma.axon.address import Address
from melisma.errors import MelismaError, SettingError
from melisma.learning.loaded_task import load_task
from melisma.learning.trainer_factory import use_one_thread
from melisma.live.peer.admission import is_loopback, is_protected
from melisma.live.peer.node_config import NodeConfig
from melisma.live.peer.node_runner import STOP_GRACE_S, NodeRunner, Progress
from melisma.live.processes import exit_with_parent
from melisma.peer.group import check_node_name
from melisma.runs.peer_report import NodeReport


def run_node(
    config: NodeConfig,
    log: Callable[[str], object] = lambda _: None,
    stop: threading.Event | None = None,
    file: str | Path | None = None,
    progress: Callable[[Progress], object] = lambda _: None,
) -> NodeReport:
    """Run one node to its end, or until `stop` is set."""
    _check_config(config)
    for folder in config.module_folders:
        if folder not in sys.path:
            sys.path.append(folder)
    loaded = load_task(config.settings.task, file)
    use_one_thread()
    settings = replace(config.settings, task=loaded.task)
    config = msgspec.structs.replace(config, settings=settings)
    return NodeRunner(config, loaded.data, log, stop or threading.Event(), progress).run()


def _check_config(config: NodeConfig) -> None:
    """Raise `SettingError` for errors that can be found before the data are loaded."""
    for name in (config.name, *config.neighbours):
        check_node_name(name)
    if config.name in config.neighbours:
        raise SettingError(f"{config.name} is its own neighbour; expected names of other nodes")
    for name, address in config.addresses.items():
        try:
            protected = is_protected(address)
        except SettingError as error:
            raise SettingError(f"neighbour {name}: {error}") from None
        if not protected:
            raise SettingError(
                f"neighbour {name}: {Address.parse(address).without_token()} is not on this "
                "machine and has no TLS; use the address that the node prints: https://...#sha256:..."
            )
    _check_token(config)
    if not 0 <= config.part < config.parts:
        raise SettingError(
            f"part {config.part} of {config.parts}; expected 0 to {config.parts - 1}"
        )


def _check_token(config: NodeConfig) -> None:
    """Raise `SettingError` if hosts beyond this machine could join, because there is no token."""
    if config.token is not None or config.open_group:
        return
    hosts = {f"{config.name} listens on": config.host}
    for name, address in config.addresses.items():
        hosts[f"neighbour {name} is at"] = Address.parse(address).host
    if config.board is not None:
        hosts["the board is at"] = Address.parse(config.board).host
    beyond = [f"{place} {host!r}" for place, host in hosts.items() if not is_loopback(host)]
    if config.discover:
        beyond.append("--discover searches the local network")
    if beyond:
        raise SettingError(
            f"the group has no token, and {beyond[0]}: every host that reaches a node could join; "
            "use the same --token for all nodes, or --open-group if this is intended"
        )


def main() -> None:
    """Run the node whose configuration is the first line of standard input."""
    config = msgspec.json.decode(sys.stdin.buffer.readline(), type=NodeConfig)
    stop = threading.Event()

    def stop_node() -> None:
        """Stop the node, and give it time to save its model and end by itself."""
        stop.set()
        time.sleep(STOP_GRACE_S)

    exit_with_parent(before_exit=stop_node)
    try:
        report = run_node(config, stop=stop)
    except (MelismaError, OSError) as error:
        sys.exit(f"{config.name}: {error}")
    if report.reason:
        sys.exit(f"{config.name}: {report.reason}")


if __name__ == "__main__":
    main()
