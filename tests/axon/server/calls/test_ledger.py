"""The ledger: no call runs twice, and no call that may have run counts as new."""

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from melisma.axon.codec.outcome import Outcome, result_outcome
from melisma.axon.server.calls.context import CallContext
from melisma.axon.server.calls.ledger import CallEntry, Ledger
from melisma.axon.server.calls.result_spool import ResultSpool
from melisma.errors import LostError, MalformedError

START = 1000.0


class Clock:
    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def ledger(clock: Clock) -> Ledger:
    return Ledger(100, clock)


def begin(ledger: Ledger, call_id: str, function: str = "f") -> CallEntry:
    assert ledger.find(call_id, None, function) is None
    return ledger.open(CallContext(call_id, function, "me"))


def run(ledger: Ledger, call_id: str, remember_s: float = 60.0) -> CallEntry:
    entry = begin(ledger, call_id)
    ledger.end(entry, result_outcome(call_id), remember_s)
    return entry


def test_a_call_that_was_never_sent_is_new(ledger: Ledger) -> None:
    assert ledger.find("a", None) is None
    assert ledger.running() == []


def test_a_repeated_id_joins_the_call_that_runs(ledger: Ledger, clock: Clock) -> None:
    entry = begin(ledger, "a")
    clock.now += 1e6  # however long it runs
    assert ledger.find("a", None, "f") is ledger.find("a", 1e6, "f") is entry
    assert ledger.running() == [entry]


async def test_all_waiters_get_the_outcome(ledger: Ledger) -> None:
    entry = begin(ledger, "a")
    waiting = [asyncio.ensure_future(entry.wait()) for _ in range(3)]
    await asyncio.sleep(0)
    outcome = result_outcome(1)
    ledger.end(entry, outcome, 60.0)
    assert [await waiter for waiter in waiting] == [outcome] * 3
    assert await entry.wait() is outcome
    assert ledger.running() == []


async def test_a_wait_that_times_out_returns_none_and_is_removed(
    ledger: Ledger,
) -> None:
    entry = begin(ledger, "a")
    assert await entry.wait(0.0) is None
    leaver = asyncio.ensure_future(entry.wait())
    await asyncio.sleep(0)
    leaver.cancel()
    await asyncio.wait([leaver])
    assert not entry._waiters
    ledger.end(entry, result_outcome(1), 60.0)
    assert await entry.wait(0.0) is not None


async def test_a_delivered_outcome_is_not_delivered_again(
    ledger: Ledger,
) -> None:
    entry = run(ledger, "a")
    entry.discard_outcome()
    assert ledger.find("a", 0.0) is entry
    with pytest.raises(LostError, match="was delivered, or over remember_bytes"):
        await entry.wait()


async def test_an_outcome_is_not_discarded_before_the_end(ledger: Ledger) -> None:
    entry = begin(ledger, "a")
    entry.discard_outcome()
    ledger.end(entry, result_outcome(1), 60.0)
    assert await entry.wait() is not None


async def test_a_spooled_outcome_is_read_and_its_space_freed(ledger: Ledger, clock: Clock) -> None:
    spool = ResultSpool(1000, 0)
    entry = begin(ledger, "a")
    entry.spooled = spool.keep([b"kept ", b"bytes"])
    ledger.end(entry, Outcome(200, "text/plain", (), "returned"), 60.0)
    for _ in range(2):
        outcome = await entry.wait()
        assert outcome is not None
        assert b"".join(outcome.buffers) == b"kept bytes"
    clock.now += 60.0
    assert ledger.find("b", None) is None  # forgetting happens when someone asks
    assert spool.memory_bytes == 0
    with pytest.raises(LostError):
        await entry.wait()


def test_a_call_is_remembered_until_it_expires(ledger: Ledger, clock: Clock) -> None:
    entry = run(ledger, "a", remember_s=60.0)
    clock.now = START + 59.999
    assert ledger.find("a", 59.999) is entry
    clock.now = START + 60.0
    with pytest.raises(LostError, match=r"first sent 60\.0 s ago"):
        ledger.find("a", 60.0)


def test_calls_are_forgotten_in_the_order_of_expiry(ledger: Ledger, clock: Clock) -> None:
    slow, quick = run(ledger, "slow", 100.0), run(ledger, "quick", 10.0)
    clock.now += 50.0
    assert ledger.find("slow", None) is slow
    assert ledger.find("quick", None) is None  # sent for the first time, it says
    assert quick.outcome is None


def test_a_retry_that_is_older_than_the_worker_is_lost(ledger: Ledger, clock: Clock) -> None:
    clock.now = START + 5.0
    for age_s in (5.0, 5.001, 1e9):
        with pytest.raises(LostError, match="may have run on this worker"):
            ledger.find("a", age_s)
    assert ledger.find("a", 4.999) is ledger.find("a", 0.0) is ledger.find("a", None) is None


def test_a_retry_of_a_call_that_may_be_forgotten_is_lost(ledger: Ledger, clock: Clock) -> None:
    clock.now = START + 10.0
    run(ledger, "a", remember_s=60.0)  # ended at START + 10
    clock.now = START + 100.0
    for age_s in (90.0, 95.0):  # first sent at START + 10, and before
        for call_id in ("a", "b"):  # it cannot be told which was forgotten
            with pytest.raises(LostError):
                ledger.find(call_id, age_s)
    assert ledger.find("b", 89.999) is None  # sent when all that is forgotten had ended


def test_over_the_limit_of_calls_the_first_to_expire_is_forgotten(clock: Clock) -> None:
    ledger = Ledger(3, clock)
    for number in range(5):
        clock.now = START + 1 + number
        run(ledger, f"call-{number}")
    clock.now = START + 10.0
    for number in (0, 1):  # ended at START + 1 and + 2
        with pytest.raises(LostError):
            ledger.find(f"call-{number}", 10.0 - 1 - number)
    for number in (2, 3, 4):
        assert ledger.find(f"call-{number}", 10.0) is not None
    with pytest.raises(LostError):
        ledger.find("new", 8.0)
    assert ledger.find("new", 7.999) is None


def test_running_calls_are_never_forgotten(clock: Clock) -> None:
    ledger = Ledger(1, clock)
    running = [begin(ledger, f"running-{number}") for number in range(5)]
    for number in range(5):
        run(ledger, f"ended-{number}")
    clock.now += 1e6
    assert ledger.running() == running
    assert [ledger.find(entry.id, 1e6) for entry in running] == running


def test_an_id_that_was_used_for_another_function_is_malformed(ledger: Ledger) -> None:
    begin(ledger, "a", "f")
    with pytest.raises(MalformedError, match="is in use for f"):
        ledger.find("a", None, "g")


@pytest.mark.parametrize("call_id", ["", "x" * 65, "a b", "a/b", "größe", "a\n", "\0"])
def test_an_invalid_id_is_malformed(ledger: Ledger, call_id: str) -> None:
    with pytest.raises(MalformedError, match="is not a call id"):
        ledger.find(call_id, None)


@pytest.mark.parametrize("call_id", ["x", "x" * 64, "0-9_a.B:c"])
def test_common_ids_are_accepted(ledger: Ledger, call_id: str) -> None:
    assert ledger.find(call_id, None) is None


class Life:
    """A worker with calls, retries and restarts at arbitrary times."""

    def __init__(self, max_calls: int) -> None:
        self.clock = Clock()
        self.max_calls = max_calls
        self.ledger = Ledger(max_calls, self.clock)
        self.sent_at: dict[str, float] = {}
        self.ran: set[str] = set()
        self.entries: dict[str, CallEntry] = {}

    def step(self, action: str, number: int, seconds: float) -> None:
        call_id = f"call-{number}"
        if action == "wait":
            self.clock.now += seconds
        elif action == "restart":
            self.ledger = Ledger(self.max_calls, self.clock)
            self.entries.clear()
        elif action == "end" and (entry := self.entries.pop(call_id, None)):
            self.ledger.end(entry, result_outcome(None), seconds)
        elif action == "send":
            self.send(call_id)

    def send(self, call_id: str) -> None:
        """Send a call, or retry it with the seconds since it was first sent."""
        first = self.sent_at.setdefault(call_id, self.clock.now)
        retry = call_id in self.ran or first < self.clock.now
        try:
            found = self.ledger.find(call_id, self.clock.now - first if retry else None)
        except LostError:
            return
        if found is None:
            assert call_id not in self.ran, f"{call_id} would run twice"
            self.ran.add(call_id)
            context = CallContext(call_id, "f", "me")
            self.entries[call_id] = self.ledger.open(context)


steps = st.tuples(
    st.sampled_from(["send", "send", "end", "wait", "restart"]),
    st.integers(0, 5),
    st.sampled_from([0.0, 0.5, 1.0, 10.0, 60.0]),
)


@given(st.lists(steps, max_size=60), st.integers(0, 3))
def test_no_call_runs_twice(history: list[Any], max_calls: int) -> None:
    life = Life(max_calls)
    for action, number, seconds in history:
        life.step(action, number, seconds)


@given(st.lists(st.floats(0.001, 100.0), max_size=20))
def test_a_retry_is_not_lost_if_no_call_was_forgotten(pauses: list[float]) -> None:
    clock = Clock()
    ledger = Ledger(100, clock)
    for number, pause_s in enumerate(pauses):
        clock.now += pause_s
        run(ledger, f"ran-{number}", remember_s=1e9)
        assert ledger.find(f"ran-{number}", 0.0) is not None
        assert ledger.find("never-ran", pause_s / 2) is None


def test_outcomes_are_limited_in_bytes_and_the_latest_is_kept(clock: Clock) -> None:
    ledger = Ledger(1000, clock, max_bytes=100_000)
    entries = [begin(ledger, f"id{number}") for number in range(200)]
    for number, entry in enumerate(entries):
        ledger.end(entry, result_outcome(bytes(30_000)), 60.0)
        assert entry.outcome is not None
        remembered = [e for e in entries[: number + 1] if e.outcome is not None]
        assert remembered == entries[max(0, number - 2) : number + 1]
        assert ledger.find(f"id{number}", None) is entry
    assert ledger.find("id0", None) is entries[0]  # its id is remembered


def test_a_call_that_did_not_arrive_can_be_sent_again(ledger: Ledger, clock: Clock) -> None:
    clock.now += 1.0
    ledger.drop(begin(ledger, "a"))
    assert ledger.find("a", 0.0) is None
