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
from melisma.allocation import get_scheme
from melisma.cycle.events import PHASES
from melisma.cycle.learner import MIN_SHARD_FRACTION, CostHistory, reserve_s, shard_bound
from melisma.errors import AxonError, MelismaError, SettingError
from melisma.fleet.fleet_file import DISCLOSURE, Disclosure
from melisma.fleet.rng import generator
from melisma.learning.data.shards import ShardCache, together
from melisma.learning.imports import is_own, told
from melisma.learning.parameters import Layout
from melisma.learning.trainer import Trained
from melisma.live import protocol
from melisma.live.learner.active_assignment import ActiveAssignment, WithdrawnError, seconds_per
from melisma.live.learner.device import Device, EmulatedDevice
from melisma.live.learner.downloader import Downloader
from melisma.live.learner.local_data import read_local_data
from melisma.live.learner.paced_trainer import PacedTrainer
from melisma.live.learner.subset_benchmark import run_subset_benchmark
from melisma.live.orchestrator.federated_evaluator import EMPTY_SCORE

DEFAULT_CACHE_BYTES = 4 << 30


class LearnerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What a learner is told by whoever starts it.

    `discloses` is the most that it lets out before its update. `path` are folders to find models of
    one's own in; without them none is imported. `own` is a folder of shards that lie on the device.
    """

    name: str
    orchestrator: str
    token: str | None = None
    cache: str
    cache_bytes: int = DEFAULT_CACHE_BYTES
    discloses: Disclosure = "costs"
    device: EmulatedDevice | None = None
    module_path: tuple[str, ...] = ()
    local_data: str | None = None


class Agent:
    """One learner of one run, with its task known."""

    def __init__(
        self, setting: LearnerSettings, orchestrator: axon.Remote, entry: protocol.RegisterResponse
    ) -> None:
        from melisma.learning.trainers import trainer_for

        self._task, self._entry, self._orchestrator = entry.task, entry, orchestrator
        if is_own(self._task.model) and not setting.module_path:
            raise SettingError(f"model {self._task.model} is none that this device may import")
        self._scheme = get_scheme(self._task.scheme)
        self._device = Device(setting.device, entry.learner)
        self._trainer = PacedTrainer(trainer_for(self._task), self._device, self._task.batch)
        layout = Layout.of(self._trainer.initial())
        cache = ShardCache(Path(setting.cache), setting.cache_bytes)
        self._supply = Downloader(orchestrator, cache, layout)
        self._own, self._held_back = read_local_data(setting.local_data, hold_back=entry.hold_back)
        self._discloses = setting.discloses
        self._orders: SimpleQueue[tuple[float, protocol.AnyInstruction]] = SimpleQueue()
        self._jobs: dict[tuple[int, int], ActiveAssignment] = {}
        self._experience: CostHistory | None = None

    def run(self) -> None:
        """Take part until the orchestrator says that it is over."""
        sizes = tuple(len(split) for split in self._own)
        joining = protocol.JoinRequest(self._entry.learner, self._discloses, sizes)
        self._orchestrator.join(protocol.to_builtins(joining))
        threading.Thread(target=self._ask, name="orders", daemon=True).start()
        while True:
            received_at, order = self._orders.get()
            match order:
                case protocol.RunBenchmark():
                    self._may_disclose("costs")
                    self._measure(received_at + order.seconds)
                    self._orchestrator.report_costs(self._entry.learner, self._costs())
                case protocol.ComputeBound():
                    self._may_disclose("bounds")
                    self._bound(received_at, order)
                case protocol.Train():
                    self._work(self._jobs[order.cycle, order.attempt])
                case protocol.EvaluateModel():
                    self._judge(order)
                case protocol.Leave():
                    return

    def _may_disclose(self, what: Disclosure) -> None:
        levels = list(DISCLOSURE)
        if levels.index(self._discloses) < levels.index(what):
            raise SettingError(
                f"asked for {what}; this learner discloses no more than {self._discloses}"
            )

    def _ask(self) -> None:
        """Ask for orders until there are no more; what is taken back is taken back at once."""
        while True:
            try:
                came = protocol.parse_instructions(
                    self._orchestrator.poll(self._entry.learner, self._progress())
                )
            except AxonError:
                came = [protocol.Leave()]
            received_at = time.monotonic()
            for order in came:
                if isinstance(order, protocol.StopTraining):
                    if job := self._jobs.get((order.cycle, order.attempt)):
                        job.withdraw()
                    continue
                if isinstance(order, protocol.Train):
                    job = ActiveAssignment(order, received_at)
                    self._jobs[job.key] = job
                self._orders.put((received_at, order))
                if isinstance(order, protocol.Leave):
                    return

    def _progress(self) -> tuple[int, int] | None:
        """How far it is, where the scheme lets that out."""
        jobs = list(self._jobs.values())
        if not jobs or self._scheme.during != "progress":
            return None
        return jobs[-1].train.cycle, jobs[-1].visits

    def _bound(self, received_at: float, order: protocol.ComputeBound) -> None:
        if self._experience is None:
            self._measure(received_at + self._task.deadline_s)
        assert self._experience is not None
        held = min(order.held, self._supply.held_shards())
        shards = int(shard_bound(self._experience, self._task, order.deadline_s, held))
        self._orchestrator.report_bound(self._entry.learner, order.cycle, order.deadline_s, shards)
        if not shards and order.deadline_s == self._task.deadline_s:
            # Nothing to do, and no cycle that would tell: maybe it can do more by now.
            self._measure(time.monotonic() + self._task.deadline_s)

    def _work(self, job: ActiveAssignment) -> None:
        self._device.start_cycle(job.train.cycle)
        job.lap("wait")
        try:
            self._hand_in(job, self._trained(job))
        except WithdrawnError:
            return
        finally:
            del self._jobs[job.key]

    def _trained(self, job: ActiveAssignment) -> Trained | None:
        """What training came to by the deadline; nothing if it did not come to that."""
        order = job.train
        try:
            model = self._supply.fetch_model(order.model, self._device, lambda: job.time_is_up(0.0))
        finally:
            down_s = job.lap("fetch model")
            self._learn(down_s=down_s)
        if model is None:
            return None
        upload_s = float(reserve_s(self._experience, self._task, down_s))
        if not self._fetch(job, lambda: job.time_is_up(upload_s)):
            return None
        own = [self._own[number] for number in order.local_shards]
        samples = together(own or self._supply.read_shards(order.shards))
        load_s = job.lap("load")
        trained = self._trainer.train(
            model,
            samples,
            order.passes,
            generator(self._task.seed, "train", order.cycle, self._entry.learner),
            job.stop_signal(self._device, self._task.batch, upload_s),
        )
        self._device.finish_compute()
        train_s = job.lap("train") - job.setup_s
        self._learn(
            train_s=seconds_per(train_s, trained.visits / self._task.shard_samples),
            rest_s=job.seconds["wait"] + load_s + job.setup_s,
        )
        return trained

    def _fetch(self, job: ActiveAssignment, over: Callable[[], bool]) -> bool:
        """Bring the shards that are missing; whether there was time for all of them.

        What a link took is learned in any case: else one that slows down would never be noticed.
        """
        parcels = job.train.shards
        missing = [parcel for parcel in parcels if not self._supply.has(parcel)]
        came = -sum(self._supply.fetched_fraction(parcel) for parcel in missing)
        try:
            for parcel in missing:
                self._supply.fetch_shard(
                    parcel, self._device, over, [each.sha256 for each in parcels]
                )
                if over():
                    return False
                job.shipped += 1
        finally:
            ship_s = job.lap("fetch shards")
            came += sum(self._supply.fetched_fraction(parcel) for parcel in missing)
            if missing:
                self._learn(ship_s=seconds_per(ship_s, max(came, MIN_SHARD_FRACTION)))
        return True

    def _hand_in(self, job: ActiveAssignment, trained: Trained | None) -> None:
        done = trained if trained is not None and trained.visits else None
        arrays: dict[str, NDArray[Any]] = done.parameters if done else {}
        handed = protocol.UpdateHeader(
            learner=self._entry.learner,
            cycle=job.train.cycle,
            attempt=job.train.attempt,
            visits=done.visits if done else 0,
            shipped=job.shipped,
            loss=done.loss if done else 0.0,
            phases=tuple(job.seconds[phase] for phase in PHASES),
            costs=self._costs() if self._scheme.needs == "costs" and self._experience else None,
        )
        self._device.start_transfer()
        self._device.add_bytes(sum(array.nbytes for array in arrays.values()))
        if refused := self._orchestrator.upload_update(protocol.to_builtins(handed), arrays):
            sys.stderr.write(f"{refused}\n")
        up_s = job.lap("upload")
        if done:
            self._learn(up_s=up_s)

    def _judge(self, order: protocol.EvaluateModel) -> None:
        model = self._supply.fetch_model(order.model, self._device)
        assert model is not None
        score = EMPTY_SCORE
        for samples in self._held_back:
            score += self._trainer.score(model, samples)
        sums = protocol.EvaluationSums(
            self._entry.learner,
            order.cycle,
            score.samples,
            score.loss_sum,
            score.right,
            score.of,
        )
        self._orchestrator.report_evaluation(protocol.to_builtins(sums))

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
        self._experience = run_subset_benchmark(
            self._entry, self._supply, self._own, self._device, until_at
        )
        if known is not None and not self._experience.ship_s.mean:
            self._experience = replace(self._experience, ship_s=known.ship_s)


def take_part(setting: LearnerSettings) -> None:
    """Enter a run, and take part in it to its end."""
    sys.path += setting.module_path
    orchestrator = axon.connect(setting.orchestrator, token=setting.token)
    entry = protocol.parse(orchestrator.register(setting.name), protocol.RegisterResponse)
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
        orchestrator.report_failure(entry.learner, said)
        raise MelismaError(said) from error


def _end_with_parent() -> None:
    """Whoever started this process holds its standard input open; when it goes, so does this."""
    # Not through `sys.stdin`, whose lock a thread must not hold when the interpreter ends.
    while os.read(0, 1024):
        pass
    os._exit(1)


def main() -> int:
    """Take part as the first line of standard input says."""
    setting = msgspec.json.decode(sys.stdin.buffer.readline(), type=LearnerSettings)
    threading.Thread(target=_end_with_parent, name="parent", daemon=True).start()
    try:
        take_part(setting)
    except MelismaError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
