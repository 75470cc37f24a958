"""A learner: asks the orchestrator for orders and follows them.

One thread asks for orders, so that a learner at work can still be told to stop; the other follows
them, one at a time. The framework is loaded when the task is known. A learner stops training so
early that its update is in by the deadline, and hands in what it has.
"""

import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import msgspec
from numpy.typing import NDArray

from melisma import axon
from melisma.allocation import scheme_named
from melisma.cycle.events import PHASES
from melisma.cycle.learner import LEAST_PART, Experience, bound, reserve_s
from melisma.errors import AxonError, MelismaError, SettingError
from melisma.fleet.fleet_file import Tells
from melisma.fleet.rng import generator
from melisma.learning.data.shards import ShardCache, together
from melisma.learning.imports import is_own, told
from melisma.learning.parameters import Layout
from melisma.learning.trainer import Trained
from melisma.live import protocol
from melisma.live.learner.assignment import Job, WithdrawnError, per
from melisma.live.learner.device import Device, Emulated
from melisma.live.learner.downloader import Supply
from melisma.live.learner.local_data import read_own
from melisma.live.learner.pacing import Paced
from melisma.live.learner.subset_benchmark import measured
from melisma.live.orchestrator.federated_evaluator import NOTHING

CACHE_BYTES = 4 << 30
TELLS: tuple[Tells, ...] = ("nothing", "bounds", "costs")


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """What a learner is told by whoever starts it.

    `tells` is the most that it lets out before its update. `path` are folders to find models of
    one's own in; without them none is imported. `own` is a folder of shards that lie on the device.
    """

    name: str
    orchestrator: str
    token: str | None = None
    cache: str
    cache_bytes: int = CACHE_BYTES
    tells: Tells = "costs"
    emulated: Emulated | None = None
    path: tuple[str, ...] = ()
    own: str | None = None


class Agent:
    """One learner of one run, with its task known."""

    def __init__(self, setting: Setting, orchestrator: axon.Remote, entry: protocol.Entry) -> None:
        from melisma.learning.trainers import trainer_for

        self._task, self._entry, self._orchestrator = entry.task, entry, orchestrator
        if is_own(self._task.model) and not setting.path:
            raise SettingError(f"model {self._task.model} is none that this device may import")
        self._scheme = scheme_named(self._task.scheme)
        self._device = Device(setting.emulated, entry.number)
        self._trainer = Paced(trainer_for(self._task), self._device, self._task.batch)
        layout = Layout.of(self._trainer.initial())
        cache = ShardCache(Path(setting.cache), setting.cache_bytes)
        self._supply = Supply(orchestrator, cache, layout)
        self._own, self._held_back = read_own(setting.own, hold_back=entry.hold_back)
        self._tells = setting.tells
        self._orders: SimpleQueue[tuple[float, protocol.AnyOrder]] = SimpleQueue()
        self._jobs: dict[tuple[int, int], Job] = {}
        self._experience: Experience | None = None

    def run(self) -> None:
        """Take part until the orchestrator says that it is over."""
        sizes = tuple(len(split) for split in self._own)
        joining = protocol.Joining(self._entry.number, self._tells, sizes)
        self._orchestrator.join(protocol.plain(joining))
        threading.Thread(target=self._ask, name="orders", daemon=True).start()
        while True:
            received_at, order = self._orders.get()
            match order:
                case protocol.Measure():
                    self._may_tell("costs")
                    self._measure(received_at + order.seconds)
                    self._orchestrator.costs(self._entry.number, self._costs())
                case protocol.Bound():
                    self._may_tell("bounds")
                    self._bound(received_at, order)
                case protocol.Train():
                    self._work(self._jobs[order.cycle, order.attempt])
                case protocol.Judge():
                    self._judge(order)
                case protocol.Leave():
                    return

    def _may_tell(self, what: Tells) -> None:
        if TELLS.index(self._tells) < TELLS.index(what):
            raise SettingError(f"asked for {what}; this learner tells no more than {self._tells}")

    def _ask(self) -> None:
        """Ask for orders until there are no more; what is taken back is taken back at once."""
        while True:
            try:
                came = protocol.orders(
                    self._orchestrator.orders(self._entry.number, self._progress())
                )
            except AxonError:
                came = [protocol.Leave()]
            received_at = time.monotonic()
            for order in came:
                if isinstance(order, protocol.Stop):
                    if job := self._jobs.get((order.cycle, order.attempt)):
                        job.withdraw()
                    continue
                if isinstance(order, protocol.Train):
                    job = Job(order, received_at)
                    self._jobs[job.key] = job
                self._orders.put((received_at, order))
                if isinstance(order, protocol.Leave):
                    return

    def _progress(self) -> tuple[int, int] | None:
        """How far it is, where the scheme lets that out."""
        jobs = list(self._jobs.values())
        if not jobs or self._scheme.during != "progress":
            return None
        return jobs[-1].order.cycle, jobs[-1].visits

    def _bound(self, received_at: float, order: protocol.Bound) -> None:
        if self._experience is None:
            self._measure(received_at + self._task.deadline_s)
        assert self._experience is not None
        held = min(order.held, self._supply.held())
        shards = int(bound(self._experience, self._task, order.deadline_s, held))
        self._orchestrator.bound(self._entry.number, order.cycle, order.deadline_s, shards)
        if not shards and order.deadline_s == self._task.deadline_s:
            # Nothing to do, and no cycle that would tell: maybe it can do more by now.
            self._measure(time.monotonic() + self._task.deadline_s)

    def _work(self, job: Job) -> None:
        self._device.enter(job.order.cycle)
        job.lap("wait")
        try:
            self._hand_in(job, self._trained(job))
        except WithdrawnError:
            return
        finally:
            del self._jobs[job.key]

    def _trained(self, job: Job) -> Trained | None:
        """What training came to by the deadline; nothing if it did not come to that."""
        order = job.order
        try:
            model = self._supply.model(order.model, self._device, lambda: job.over(0.0))
        finally:
            down_s = job.lap("fetch model")
            self._learn(down_s=down_s)
        if model is None:
            return None
        upload_s = float(reserve_s(self._experience, self._task, down_s))
        if not self._fetch(job, lambda: job.over(upload_s)):
            return None
        own = [self._own[number] for number in order.own]
        samples = together(own or self._supply.read(order.shards))
        load_s = job.lap("load")
        trained = self._trainer.train(
            model,
            samples,
            order.passes,
            generator(self._task.seed, "train", order.cycle, self._entry.number),
            job.stop(self._device, self._task.batch, upload_s),
        )
        self._device.settle()
        train_s = job.lap("train") - job.setup_s
        self._learn(
            train_s=per(train_s, trained.visits / self._task.shard_samples),
            rest_s=job.seconds["wait"] + load_s + job.setup_s,
        )
        return trained

    def _fetch(self, job: Job, over: Callable[[], bool]) -> bool:
        """Bring the shards that are missing; whether there was time for all of them.

        What a link took is learned in any case: else one that slows down would never be noticed.
        """
        parcels = job.order.shards
        missing = [parcel for parcel in parcels if not self._supply.has(parcel)]
        came = -sum(self._supply.part(parcel) for parcel in missing)
        try:
            for parcel in missing:
                self._supply.shard(parcel, self._device, over, [each.sha256 for each in parcels])
                if over():
                    return False
                job.shipped += 1
        finally:
            ship_s = job.lap("fetch shards")
            came += sum(self._supply.part(parcel) for parcel in missing)
            if missing:
                self._learn(ship_s=per(ship_s, max(came, LEAST_PART)))
        return True

    def _hand_in(self, job: Job, trained: Trained | None) -> None:
        done = trained if trained is not None and trained.visits else None
        arrays: dict[str, NDArray[Any]] = done.parameters if done else {}
        handed = protocol.Handed(
            learner=self._entry.number,
            cycle=job.order.cycle,
            attempt=job.order.attempt,
            visits=done.visits if done else 0,
            shipped=job.shipped,
            loss=done.loss if done else 0.0,
            phases=tuple(job.seconds[phase] for phase in PHASES),
            costs=self._costs() if self._scheme.needs == "costs" and self._experience else None,
        )
        self._device.begin_transfer()
        self._device.passed(sum(array.nbytes for array in arrays.values()))
        if refused := self._orchestrator.update(protocol.plain(handed), arrays):
            sys.stderr.write(f"{refused}\n")
        up_s = job.lap("upload")
        if done:
            self._learn(up_s=up_s)

    def _judge(self, order: protocol.Judge) -> None:
        model = self._supply.model(order.model, self._device)
        assert model is not None
        score = NOTHING
        for samples in self._held_back:
            score += self._trainer.score(model, samples)
        sums = protocol.Judged(
            self._entry.number,
            order.cycle,
            score.samples,
            score.loss_sum,
            score.right,
            score.of,
        )
        self._orchestrator.judged(protocol.plain(sums))

    def _costs(self) -> tuple[tuple[float, ...], ...]:
        assert self._experience is not None
        return tuple(tuple(row) for row in self._experience.costs().tolist())

    def _learn(self, **took_s: float) -> None:
        """What a cycle took; without a benchmark there is nothing to add it to."""
        if self._experience is not None:
            self._experience = self._experience.after(**took_s)

    def _measure(self, until_at: float) -> None:
        """Anew; what shards take to fetch is not forgotten where all of them are here."""
        known = self._experience
        self._experience = measured(self._entry, self._supply, self._own, self._device, until_at)
        if known is not None and not self._experience.ship_s.mean:
            self._experience = replace(self._experience, ship_s=known.ship_s)


def take_part(setting: Setting) -> None:
    """Enter a run, and take part in it to its end."""
    sys.path += setting.path
    orchestrator = axon.connect(setting.orchestrator, token=setting.token)
    entry = protocol.checked(orchestrator.enter(setting.name), protocol.Entry)
    try:
        Agent(setting, orchestrator, entry).run()
    except AxonError:
        raise
    except Exception as error:
        own = not isinstance(error, MelismaError)
        if own:
            # Before it is told: the run may end with it, and this process then at once.
            traceback.print_exc()
        said = f"{setting.name}: {told(error) if own else error}"[:1000]
        orchestrator.fail(entry.number, said)
        raise MelismaError(said) from error


def _end_with_parent() -> None:
    """Whoever started this process holds its standard input open; when it goes, so does this."""
    # Not through `sys.stdin`, whose lock a thread must not hold when the interpreter ends.
    while os.read(0, 1024):
        pass
    os._exit(1)


def main() -> int:
    """Take part as the first line of standard input says."""
    setting = msgspec.json.decode(sys.stdin.buffer.readline(), type=Setting)
    threading.Thread(target=_end_with_parent, name="parent", daemon=True).start()
    try:
        take_part(setting)
    except MelismaError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
