"""The invitation to a run: what its owner and the owners of devices should know."""

from collections.abc import Callable
from dataclasses import dataclass, field

from melisma.axon import Address
from melisma.fleet.task import Task
from melisma.live.join_string import JoinString
from melisma.live.orchestrator.lobby import StartCondition
from melisma.live.orchestrator.orchestrator import Watcher
from melisma.runs.progress import RunProgress
from melisma.runs.trace import Step
from melisma.user_code import is_import_path


@dataclass(frozen=True)
class Invitation:
    """The join string of a run, when it begins or whether it goes on, and its task.

    Without a task it is that of a service, to which tasks are submitted.
    """

    join_string: JoinString = field(repr=False)
    left_out: tuple[str, ...]
    fingerprint: str
    start: StartCondition
    task: Task | None
    goes_on: bool = False

    @property
    def beginning(self) -> str:
        """When the run begins; of one that goes on, how its devices come back."""
        if self.task is None:
            return "melisma submit TASK.toml adds a task; Ctrl-C ends the service, which keeps them"
        if self.goes_on:
            return "devices that joined this run reconnect by themselves; Ctrl-C ends it"
        return f"the run begins {self.start}; Ctrl-C ends it"

    @property
    def summary(self) -> str:
        """The task, in a few words."""
        if self.task is None:
            return "a service for several tasks"
        return f"task {self.task.name}: {self.task.scheme}, {self.task.describe_cycles()}"

    @property
    def code_note(self) -> str:
        """A note on code that the owners of devices have to allow; empty for a model of Melisma."""
        if self.task is None:
            return "tasks with a model of their own need --trust-code, or --allow-module MODULE"
        model = self.task.model
        if not is_import_path(model):
            return ""
        module = model.partition(":")[0]
        return (
            f"the model {model} is code of the task: --trust-code lets a device run it, or use "
            f"--allow-module {module} instead if it is installed there"
        )

    @property
    def data_note(self) -> str:
        """How devices pass their data in federated learning; empty in other modes."""
        if self.task is None or self.task.mode != "federated":
            return ""
        return (
            "the samples are on the devices: add --data FOLDER or --data MODULE:FUNCTION to the "
            "command, with the data of each"
        )

    @property
    def command(self) -> str:
        """The command line for devices."""
        return f"melisma join {self.join_string}{self._trust}"

    @property
    def pairing_command(self) -> str:
        """The command line for devices in the same network, which then ask for the code."""
        return f"melisma join{self._trust}"

    @property
    def _trust(self) -> str:
        return " --trust-code" if self.task is not None and self.code_note else ""

    @property
    def addresses(self) -> list[str]:
        """The addresses in the join string."""
        port = self.join_string.port
        return [str(Address(h, port)).removeprefix("http://") for h in self.join_string.hosts]


class OrchestrationObserver:
    """Receives what the owner of an orchestrator should know, as lines of text.

    Its methods are called from the thread of the orchestrator.
    """

    def __init__(self, say: Callable[[str], None] = print, watch: Watcher = lambda _: None) -> None:
        self.say, self.watch = say, watch

    def on_invitation(self, invitation: Invitation) -> None:
        """Announce the task, and how devices join."""
        self.say(invitation.summary)
        self.say(f"on each device: {invitation.command}")
        for note in filter(None, (invitation.code_note, invitation.data_note)):
            self.say(note)
        if invitation.task is not None:
            self.say(f"the run begins {invitation.start}")

    def on_code(self, code: str, invitation: Invitation) -> None:
        """Say the code for devices in the same network."""
        self.say(f"in the same network also: {invitation.pairing_command}, with the code {code}")

    def watch_task(self, number: int, progress: RunProgress, step: Step) -> None:
        """Follow a step of one task of several, by its number."""

    def on_learner(self, line: str) -> None:
        """Say that a learner has come or gone."""
        self.say(line)

    def on_fetch(self, learner: int) -> None:
        """Note that a learner, by its number, has requested a file."""

    def on_note(self, note: str) -> None:
        """Say what does not work."""
        self.say(f"note: {note}")
