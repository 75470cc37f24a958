from dataclasses import dataclass

import pytest

from melisma.errors import SettingError
from melisma.fleet.emulation import (
    MIN_SLEEP_S,
    TURN_S,
    ComputePacer,
    Contention,
    LinkShaper,
)


@dataclass
class Machine:
    """A machine whose clock only advances by work, sleep and the load of other processes."""

    now_s: float = 100.0
    used_s: float = 7.0

    def work(self, seconds: float, *, others_s: float = 0.0) -> None:
        self.now_s += seconds + others_s
        self.used_s += seconds

    def sleep(self, seconds: float) -> None:
        assert seconds >= 0
        self.now_s += seconds

    def pace(self, share: float) -> ComputePacer:
        return ComputePacer(share, lambda: self.used_s, lambda: self.now_s, self.sleep)

    def link(self, bandwidth_bps: float, latency_s: float = 0.0) -> LinkShaper:
        return LinkShaper(bandwidth_bps, latency_s, lambda: self.now_s, self.sleep)


@pytest.mark.parametrize("share", [0.02, 0.25, 0.9, 1.0])
def test_work_takes_the_time_of_the_share(share: float) -> None:
    machine = Machine()
    pace = machine.pace(share)
    for piece in range(1, 200):
        machine.work(0.001 * (1 + piece % 7))
        pace.throttle()
        assert 0 <= pace.now() - machine.now_s <= MIN_SLEEP_S
    pace.catch_up()
    assert pace.now() == machine.now_s
    used_s = machine.used_s - 7.0
    assert machine.now_s - 100.0 == pytest.approx(used_s / share, rel=0.01)


def test_other_load_on_the_machine_shortens_the_sleep() -> None:
    machine = Machine()
    pace = machine.pace(0.25)
    for _ in range(100):
        machine.work(0.002, others_s=0.004)
        pace.throttle()
    pace.catch_up()
    assert machine.now_s - 100.0 == pytest.approx(0.2 / 0.25, rel=0.01)


def test_work_before_begin_is_ignored() -> None:
    machine = Machine()
    pace = machine.pace(0.5)
    machine.work(10.0)
    pace.begin()
    machine.work(1.0)
    pace.catch_up()
    assert machine.now_s == pytest.approx(112.0)


@pytest.mark.parametrize("pieces", [[1_000_000], [1000] * 1000, [10, 999_990]])
def test_transfers_take_the_time_of_the_link(pieces: list[int]) -> None:
    machine = Machine()
    link = machine.link(8e6, latency_s=0.03)
    link.begin()
    for piece in pieces:
        link.transfer(piece)
    assert machine.now_s - 100.0 == pytest.approx(1.03, rel=0.01)


def test_a_slower_real_link_is_not_slowed_further() -> None:
    machine = Machine()
    link = machine.link(8e6)
    link.begin()
    for _ in range(10):
        machine.now_s += 0.01
        link.transfer(1000)
    assert machine.now_s - 100.0 == pytest.approx(10 * 0.01)


def test_oversleeping_is_made_up_for() -> None:
    machine = Machine()
    link = LinkShaper(8e6, 0.0, lambda: machine.now_s, lambda s: machine.sleep(s + 0.002))
    link.begin()
    for _ in range(1000):
        link.transfer(1000)
    assert machine.now_s - 100.0 == pytest.approx(1.0, rel=0.01)


def test_an_idle_link_gains_no_credit() -> None:
    machine = Machine()
    link = machine.link(8e6)
    for _ in range(10):
        machine.now_s += 5.0
        link.begin()
        link.transfer(100_000)
    assert machine.now_s - 100.0 == pytest.approx(10 * 5.1)


@pytest.mark.parametrize("share", [0.0, -1.0, float("nan")])
def test_an_invalid_share_is_an_error(share: float) -> None:
    with pytest.raises(SettingError, match="share is"):
        Machine().pace(share)


@pytest.mark.parametrize(("bandwidth_bps", "latency_s"), [(0.0, 0.0), (1.0, -1.0)])
def test_an_invalid_link_is_an_error(bandwidth_bps: float, latency_s: float) -> None:
    with pytest.raises(SettingError, match=r"link has bandwidth_bps .* and latency_s"):
        Machine().link(bandwidth_bps, latency_s)


def test_a_device_does_not_make_up_for_time_in_which_it_had_no_work() -> None:
    machine = Machine()
    pace = machine.pace(0.25)
    machine.sleep(2.0)
    pace.skip(2.0)
    machine.work(0.5)
    pace.catch_up()
    assert machine.now_s - 100.0 == pytest.approx(2.0 + 0.5 / 0.25)


def test_two_transfers_at_the_same_time_share_the_link_evenly() -> None:
    """While one of them waits for its turn to pass, the other one takes a turn."""
    machine, turns, waits = Machine(), 0, True
    turn_bytes = int(1e6 * TURN_S)

    def sleep(seconds: float) -> None:
        nonlocal turns, waits
        machine.sleep(seconds)
        waits = not waits
        if waits:
            turns += 1
            link.transfer(turn_bytes)

    link = LinkShaper(8e6, 0.0, lambda: machine.now_s, sleep)
    link.begin()
    began = machine.now_s
    link.transfer(1_000_000)
    assert machine.now_s - began == pytest.approx(2.0)
    assert turns == 1_000_000 / turn_bytes


def test_a_transfer_that_is_over_waits_for_one_turn_at_most() -> None:
    machine = Machine()
    link = machine.link(8e3)
    link.begin()
    link.transfer(100_000, lambda: machine.now_s > 100.0)
    assert machine.now_s - 100.0 == pytest.approx(TURN_S)


def test_contention_is_the_time_that_a_stressor_used_while_there_was_work() -> None:
    contention = Contention()
    contention.used_s = 2.0
    assert contention.count() == 2.0
    contention.used_s = 5.0
    contention.discard()
    assert contention.count() == 2.0
    contention.used_s = 6.0
    assert contention.count() == contention.counted_s == 3.0
