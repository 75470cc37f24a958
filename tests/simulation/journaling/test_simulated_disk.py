from collections.abc import Callable

import numpy as np
import pytest

from melisma.simulation.faults import parse_faults
from melisma.simulation.journaling.disk_faults import DiskFaults
from melisma.simulation.journaling.simulated_disk import SECTOR, SimulatedDisk

NAME = "journal.db"


def make_disk(
    faults: str = "", seed: int = 0, clock: Callable[[], float] = lambda: 1.0
) -> SimulatedDisk:
    disk = SimulatedDisk(DiskFaults(parse_faults(faults, 2), clock), np.random.default_rng(seed))
    disk.create(NAME)
    return disk


def content(disk: SimulatedDisk) -> bytes:
    return disk.read(NAME, 0, disk.size(NAME))


def test_what_was_synced_survives_a_power_cut() -> None:
    for seed in range(50):
        disk = make_disk(seed=seed)
        disk.write(NAME, 0, b"a" * 3 * SECTOR)
        disk.sync(NAME)
        disk.lose_power()
        assert content(disk) == b"a" * 3 * SECTOR


def test_writes_that_were_not_synced_are_lost_torn_and_reordered() -> None:
    found = set()
    for seed in range(200):
        disk = make_disk(seed=seed)
        disk.write(NAME, 0, b"0" * 2 * SECTOR)
        disk.sync(NAME)
        disk.write(NAME, 0, b"1" * SECTOR)
        disk.write(NAME, SECTOR, b"2" * SECTOR)
        assert content(disk) == b"1" * SECTOR + b"2" * SECTOR
        disk.lose_power()
        kept = content(disk)
        assert kept == bytes([kept[0]]) * SECTOR + bytes([kept[-1]]) * SECTOR
        found.add((chr(kept[0]), chr(kept[-1])))
    assert found == {("0", "0"), ("1", "0"), ("0", "2"), ("1", "2")}


def test_a_long_write_is_torn_between_sectors() -> None:
    sizes = set()
    for seed in range(200):
        disk = make_disk(seed=seed)
        disk.write(NAME, 0, b"1" * 4 * SECTOR)
        disk.lose_power()
        sizes.add(disk.size(NAME))
    assert sizes == {0, SECTOR, 2 * SECTOR, 3 * SECTOR, 4 * SECTOR}


def test_a_full_disk_takes_only_what_makes_no_file_larger() -> None:
    now_s = 0.0
    disk = make_disk("fill disk at 2 for 3", clock=lambda: now_s)
    disk.write(NAME, 0, b"abc")
    now_s = 2.0
    disk.write(NAME, 0, b"xyz")
    with pytest.raises(OSError, match="no space left"):
        disk.write(NAME, 1, b"xyz")
    now_s = 5.0
    disk.write(NAME, 1, b"xyz")
    assert content(disk) == b"xxyz"


def test_after_a_sync_that_failed_nothing_is_known_to_be_on_disk() -> None:
    disk = make_disk("fail sync at 1 for 1")
    disk.write(NAME, 0, b"a" * SECTOR)
    with pytest.raises(OSError, match="input/output"):
        disk.sync(NAME)
    disk.lose_power()
    assert content(disk) in (b"", b"a" * SECTOR)


def test_a_misdirected_write_goes_to_another_place_of_its_file() -> None:
    for seed in range(20):
        disk = make_disk("misdirect write 2", seed)
        disk.write(NAME, 0, b"a" * 4 * SECTOR)
        disk.write(NAME, SECTOR, b"b" * SECTOR)
        kept = content(disk)
        assert kept[SECTOR : 2 * SECTOR] == b"a" * SECTOR
        assert kept.count(b"b" * SECTOR) == 1


def test_one_bit_flips_for_the_process_and_on_the_disk() -> None:
    disk = make_disk()
    disk.write(NAME, 0, bytes(SECTOR))
    disk.sync(NAME)
    disk.flip_any_bit([NAME])
    flipped = content(disk)
    assert sum(byte.bit_count() for byte in flipped) == 1
    disk.lose_power()
    assert content(disk) == flipped
