"""The orchestrator in virtual time: lets the cycle machine decide, and acts out what it says.

The machine is the one that runs live, and so is what learners decide. Here are only the clock, the
post, and who is there.
"""

from collections.abc import Callable
from functools import partial
from math import isfinite
from typing import Any

import numpy as np

from melisma.cycle import commands, events
from melisma.cycle.machine import CycleMachine
from melisma.cycle.ragged import Ints
from melisma.cycle.state import CycleState
from melisma.errors import MelismaError
from melisma.runs.interruption import interruptible
from melisma.runs.trace import Step
from melisma.simulation.churn import Churn, SleepSpans, departure_times_s
from melisma.simulation.compute.compute import Compute, CycleWork
from melisma.simulation.faults import Corruption, Slowness, clock_rates
from melisma.simulation.kernel import EventQueue
from melisma.simulation.learners import SimulatedLearners, SimulatedUpdates
from melisma.simulation.network import Deliver, InFlight, SimulatedNetwork
from melisma.simulation.scenario import Scenario

Watcher = Callable[[Step], object]
# So many learners are named where many are gone.
NAMED = 5
CORRUPT = "the update is refused: it holds numbers that are not finite"


class Driver:
    """One run in virtual time; `watch` sees every step."""

    def __init__(self, scene: Scenario, work: Compute, watch: Watcher = lambda _: None) -> None:
        task, fleet = scene.task, scene.fleet
        self._scene, self._task, self._fleet, self._work = scene, task, fleet, work
        self._watch = watch
        self._agenda = EventQueue()
        self._corrupt = Corruption(scene.faults)
        changes = fleet.changes(scene.horizon_s)
        self._post = SimulatedNetwork(
            self._agenda, scene.faults, departure_times_s(changes, fleet.learners)
        )
        self._learners = SimulatedLearners(
            task,
            fleet,
            scene.local_sizes.counts,
            SleepSpans(changes, fleet.learners),
            Slowness(scene.faults),
        )
        self._learners.clock *= clock_rates(scene.faults, fleet.learners)
        self._presence = Churn(scene, changes, self._agenda, self)
        self._job: CycleWork | None = None
        self._at_work: list[tuple[int, SimulatedUpdates, list[InFlight]]] = []
        self._wakes = 0
        self._machine = CycleMachine()
        self.finished: commands.Finish | None = None

    def run(self) -> commands.Finish:
        """To the end."""
        self.handle(self._scene.submission())
        self.report_joined(np.flatnonzero(self._presence.present))
        with interruptible() as check:
            while self.finished is None:
                check()
                if not isfinite(self._agenda.next_s) or not self._agenda.step():
                    raise MelismaError("the run hangs: nothing is to come, and it is not over")
        return self.finished

    @property
    def state(self) -> CycleState:
        """The state of the cycle machine."""
        return self._machine.state

    def handle(self, event: Any) -> None:
        """Let the machine decide what an event means, and do what it says."""
        if self.finished is not None:
            return
        said = self._machine.handle(event)
        self._watch(Step(event, said))  # type: ignore[arg-type]
        for command in said:
            _DOING[type(command)](self, command)

    def report_joined(self, who: Ints) -> None:
        """These learners say that they are there."""
        if not who.size:
            return
        names, tells = self._fleet.names, self._fleet.discloses
        everybody = who.size == len(names)
        self.handle(
            events.LearnersJoined(
                at_s=self._agenda.now_s,
                learners=who,
                names=names if everybody else tuple(names[one] for one in who.tolist()),
                discloses=tells if everybody else tuple(tells[one] for one in who.tolist()),
                local_data=self._scene.local_sizes.take(who)
                if len(self._scene.local_sizes)
                else self._scene.local_sizes,
            )
        )

    def report_left(self, who: Ints, reason: str) -> None:
        """The orchestrator notices that these are gone."""
        some = ", ".join(self._fleet.names[one] for one in who[:NAMED].tolist())
        said = f"{some}{', ...' * (who.size > NAMED)} {reason}"
        self.handle(events.LearnersLeft(at_s=self._agenda.now_s, learners=who, reason=said))

    def cancel(self, reason: str) -> None:
        """End it here."""
        self.handle(events.TaskCancelled(at_s=self._agenda.now_s, reason=reason))

    def silence(self, who: Ints) -> None:
        """These send nothing any more."""
        self._post.drop_unsent(who)

    def restart(self, who: Ints) -> None:
        """These are there again, and know nothing."""
        self._learners.restart(who, self._agenda.now_s)
        self.report_joined(who)

    def _benchmark(self, command: commands.Benchmark) -> None:
        def follow(places: Ints) -> None:
            who = self._there(command.learners[places])
            ready_s, costs = self._learners.measure(who, self._agenda.now_s, command.seconds)

            def tell(some: Ints, came_s: events.Floats) -> None:
                self.handle(
                    events.EstimatesReported(
                        at_s=float(came_s[-1]), learners=who[some], costs=costs[:, :, some]
                    )
                )

            self._answer(who, ready_s, tell)

        self._post.send_order(command.learners, follow)

    def _ask_bound(self, command: commands.AskBound) -> None:
        def follow(places: Ints) -> None:
            places = places[self._presence.present[command.learners[places]]]
            who = command.learners[places]
            ready_s, shards = self._learners.ask_bounds(
                who, self._agenda.now_s, command, command.held[places]
            )

            def tell(some: Ints, came_s: events.Floats) -> None:
                self.handle(
                    events.BoundsReported(
                        at_s=float(came_s[-1]),
                        learners=who[some],
                        cycle=command.cycle,
                        deadline_s=command.deadline_s,
                        shards=shards[some],
                    )
                )

            self._answer(who, ready_s, tell)

        self._post.send_order(command.learners, follow)

    def _answer(self, who: Ints, ready_s: events.Floats, tell: Deliver) -> None:
        """Answers of those who are waited for are not held up by those of others."""
        silent = self.state.learners.silent[who]
        for some in (np.flatnonzero(~silent), np.flatnonzero(silent)):
            self._post.send_reports(who[some], ready_s[some], partial(_at, some, tell))

    def _dispatch(self, command: commands.Dispatch) -> None:
        samples = self.state.learners.samples[command.learners]
        self._job = job = CycleWork(
            command.cycle,
            command.learners,
            command.shards,
            command.passes,
            np.zeros(command.learners.size, np.int64),
        )

        def follow(places: Ints) -> None:
            places = places[self._presence.present[command.learners[places]]]
            now_s = self._agenda.now_s
            handed = self._learners.train(command, places, samples[places], now_s)

            def tell(some: Ints, came_s: events.Floats) -> None:
                came = handed.take(some)
                self._count(job, command, came)
                self._tell_updates(command, came, came_s)

            flights = self._post.send_reports(handed.learners, handed.in_s, tell)
            under_way = [each for each in self._at_work if not all(f.is_done for f in each[2])]
            self._at_work = [*under_way, (command.cycle, handed, flights)]

        self._post.send_order(command.learners, follow)

    def _count(self, job: CycleWork, order: commands.Dispatch, handed: SimulatedUpdates) -> None:
        """What is trained is what the machine takes: the first that comes of an assignment."""
        attempts = order.attempts[handed.places]
        taken = self.state.expects(handed.learners, order.cycle, attempts)
        job.batches[handed.places[taken]] = handed.batches[taken]

    def _tell_updates(
        self, order: commands.Dispatch, handed: SimulatedUpdates, came_s: events.Floats
    ) -> None:
        corrupt = self._corrupt(handed.learners, handed.visits)
        for places, refused in ((np.flatnonzero(~corrupt), ""), (np.flatnonzero(corrupt), CORRUPT)):
            if not places.size:
                continue
            some, at_s = handed.take(places), float(came_s[-1])
            if self.state.scheme.needs == "costs" and not refused and some.measured.any():
                known = some.take(np.flatnonzero(some.measured))
                self.handle(
                    events.EstimatesReported(at_s=at_s, learners=known.learners, costs=known.costs)
                )
            self.handle(
                events.UpdatesReceived(
                    at_s=at_s,
                    learners=some.learners,
                    cycle=order.cycle,
                    attempts=order.attempts[some.places],
                    visits=some.visits,
                    shipped=some.shipped,
                    loss=np.full(places.size, np.nan),
                    phases=some.phases,
                    came_s=came_s[places],
                    refused=refused,
                )
            )

    def _withdraw(self, command: commands.Withdraw) -> None:
        def follow(places: Ints) -> None:
            who, now_s = command.learners[places], self._agenda.now_s
            for cycle, handed, flights in self._at_work:
                if cycle == command.cycle:
                    # What is trained is sent, whatever becomes of it.
                    busy = np.isin(handed.learners, who) & (handed.stops_s > now_s)
                    self._learners.stop(handed.learners[busy], handed.in_s[busy], now_s)
                    for flight in flights:
                        flight.lose(handed.learners[busy])

        self._post.send_order(command.learners, follow)

    def _wake(self, command: commands.Wake) -> None:
        self._wakes += 1
        nth = self._wakes

        def reached() -> None:
            if nth == self._wakes:
                self.handle(events.TimeReached(at_s=self._agenda.now_s))

        self._agenda.schedule(command.at_s, reached)

    def _aggregate(self, command: commands.Aggregate) -> None:
        now_s, loss = self._agenda.now_s, events.NO_NUMBERS
        if command.learners.size:
            assert self._job is not None
            loss = self._work.average(self._job, command.learners, command.weights)
        done = events.Aggregated(at_s=now_s, cycle=command.cycle, seconds=0.0, loss=loss)
        self._agenda.schedule(now_s, lambda: self.handle(done))

    def _evaluate(self, command: commands.Evaluate) -> None:
        now_s, (loss, accuracy) = self._agenda.now_s, self._work.score()
        score = events.Evaluated(
            at_s=now_s, cycle=command.cycle, loss=loss, accuracy=accuracy, seconds=0.0
        )
        self._agenda.schedule(now_s, lambda: self.handle(score))

    def _finish(self, command: commands.Finish) -> None:
        self.finished = command

    def _there(self, who: Ints) -> Ints:
        return who[self._presence.present[who]]


def _at(some: Ints, tell: Deliver, places: Ints, came_s: events.Floats) -> None:
    tell(some[places], came_s)


_DOING: dict[type[commands.Command], Callable[[Driver, Any], None]] = {
    commands.Benchmark: Driver._benchmark,
    commands.AskBound: Driver._ask_bound,
    commands.Dispatch: Driver._dispatch,
    commands.Withdraw: Driver._withdraw,
    commands.Wake: Driver._wake,
    commands.Aggregate: Driver._aggregate,
    commands.Evaluate: Driver._evaluate,
    commands.Finish: Driver._finish,
}
