"""How devices reach and join an orchestrator."""

from collections.abc import Callable
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Final

from melisma.errors import SettingError
from melisma.live.local_addresses import local_addresses
from melisma.live.orchestrator.lobby import StartCondition

DEFAULT_PORT: Final = 7788
"""A fixed port, so that devices find the next run at the address that they know."""
MAX_LEARNERS: Final = 1000
Decide = Callable[[str, str, str | None], bool]
"""Decides about a device by its name, its fingerprint and the host that it called from."""


@dataclass(frozen=True, kw_only=True)
class OrchestratorSettings:
    """How devices reach and join an orchestrator.

    `host` is an IP address of this machine; by default it listens on all. `approve` decides about
    each new device, in a thread of its own; by default all that know the join string may join. With
    `once` the join string is valid for one device. `name` is announced on the local network if
    `discovery` is on.
    """

    start: StartCondition = field(default_factory=StartCondition)
    host: str = ""
    port: int = DEFAULT_PORT
    approve: Decide | None = None
    once: bool = False
    max_learners: int = MAX_LEARNERS
    name: str = ""
    discovery: bool = True

    def __post_init__(self) -> None:
        if self.max_learners < (self.start.learners or 1):
            raise SettingError(
                f"max_learners = {self.max_learners} is less than the learners that the run waits "
                f"for: use max_learners >= {self.start.learners or 1}"
            )
        try:
            ip_address(self.host or "0.0.0.0")  # noqa: S104 - parsed, not bound
        except ValueError:
            raise SettingError(
                f"host = {self.host!r} is not an IP address: use one of this machine, such as "
                f"{', '.join([*local_addresses()[:2], '127.0.0.1'])}"
            ) from None
