"""An orchestrator that devices join by a join string, in the process of the test."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from melisma import axon
from melisma.fleet.task import Task
from melisma.live.join_string import JoinString
from melisma.live.orchestrator.enrolment import Approve, Enrolment
from melisma.live.orchestrator.learner_authentication import DeviceAuthenticator, JoinTokens
from melisma.live.orchestrator.registry import Registry
from tests.live.orchestrator.served_run import TASK, ServedRun

ROOT = str(Path(__file__).parents[3])


class OpenRun:
    """A run for the devices a and b, and the join string to it."""

    def __init__(self, folder: Path, task: Task = TASK) -> None:
        self.run, self.tokens = ServedRun(folder / "run", task), JoinTokens()
        self.registry = Registry(folder / "learners.json")
        self.address = self.string = ""

    @asynccontextmanager
    async def listening(
        self, approve: Approve | None = None, *, port: int = 0
    ) -> AsyncIterator["OpenRun"]:
        """Serve devices inside an ``async with``."""
        worker = self.run.service.worker(
            DeviceAuthenticator(self.registry, self.tokens),
            tls=self.run.store.folder.parent / "orchestrator.pem",
            port=port,
        )
        Enrolment(self.registry, approve).expose(worker)
        async with worker.listening() as address:
            parsed = axon.Address.parse(address)
            assert parsed.fingerprint is not None
            # The second one does not answer, as addresses of other networks do not.
            hosts = [parsed.host, "127.9.9.9"]
            token = self.tokens.issue()
            self.address = address
            self.string = str(JoinString.create(parsed.port, parsed.fingerprint, token, hosts)[0])
            self.run.orchestrator.start()
            yield self
        self.run.close()
