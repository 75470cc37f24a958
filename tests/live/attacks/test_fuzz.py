"""A fuzzer against every endpoint of a running orchestrator, while honest learners train."""

import asyncio
import contextlib
import random
import re
from collections import Counter
from pathlib import Path

import pytest

from melisma import axon
from melisma.errors import AxonError, EncodingError, RemoteError
from melisma.live.orchestrator.learner_service import METHODS
from tests.axon import http_fuzz
from tests.lanes import cases
from tests.live.attacks.attacked_fleet import AttackedFleet, Device, HostileLearner, attacked_fleet
from tests.live.attacks.endpoint_fuzz import OTHER_METHODS, random_call, random_request
from tests.live.attacks.test_hostile_learner import check_honest_learners

CALLS, REQUESTS, AT_ONCE = 300, 60, 8
MAX_GROWTH_BYTES = 64 << 20


@pytest.mark.parametrize("seed", range(cases(4)))
def test_an_orchestrator_answers_honest_learners_under_a_fuzzer(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_fuzz, "NAMES", (*METHODS, *OTHER_METHODS))
    rng = random.Random(seed)
    with attacked_fleet(
        tmp_path, "--name", "fuzzed", learners=3, cycles=2, deadline_s=120.0
    ) as fleet:
        fleet.start_learner("a")
        fleet.start_learner("b")
        anchor = fleet.anchor()
        assert anchor.at_work.wait(60)
        mallory = fleet.hostile()
        mallory.join()
        before_bytes = fleet.process.memory_info().rss
        outcomes = asyncio.run(fuzz_calls(rng, fleet, mallory))
        answers = [
            send_and_leave(rng, fleet, rng.choice((None, mallory.device))) for _ in range(REQUESTS)
        ]
        growth_bytes = fleet.process.memory_info().rss - before_bytes
        anchor.release()
        report = fleet.finish()
    check_honest_learners(report)
    assert outcomes["raised"] == 0
    # Few of them on a busy machine, where most calls exceed their deadlines.
    assert outcomes["returned"] > 0
    statuses = Counter(re.findall(rb"HTTP/1\.1 (\d+)", b"".join(answers)))
    assert statuses.total() > 0
    assert statuses[b"500"] == 0, statuses
    assert growth_bytes < MAX_GROWTH_BYTES


async def fuzz_calls(
    rng: random.Random, fleet: AttackedFleet, mallory: HostileLearner
) -> "Counter[str]":
    """Call methods with random arguments, some at a time; count the outcomes."""
    outcomes: Counter[str] = Counter()
    with mallory.device.connect() as learner, axon.connect(fleet.address) as nameless:
        callers = (learner, learner, learner, nameless)

        async def call_often() -> None:
            for _ in range(CALLS // AT_ONCE):
                if rng.random() < 0.1:
                    # After a mutated message that ended its session.
                    with contextlib.suppress(AxonError):
                        await asyncio.to_thread(mallory.join)
                method, arguments = random_call(rng, mallory.session)
                caller = rng.choice(callers)
                try:
                    await caller(deadline_s=1.0, retries=0).aio[method](*arguments)
                    outcomes["returned"] += 1
                except EncodingError:
                    outcomes["not sent"] += 1
                except AxonError as error:
                    is_raised = isinstance(error, RemoteError)
                    outcomes["raised" if is_raised else type(error).__name__] += 1
                except Exception:  # noqa: BLE001 - as the method of the orchestrator raised it
                    outcomes["raised"] += 1

        await asyncio.gather(*(call_often() for _ in range(AT_ONCE)))
    return outcomes


def send_and_leave(rng: random.Random, fleet: AttackedFleet, device: Device | None) -> bytes:
    """Send random bytes on one connection, and close it soon; return what was answered by then."""
    answer = b""
    with contextlib.suppress(OSError), fleet.open_socket(device) as sock:
        sock.sendall(random_request(rng))
        sock.settimeout(0.1)
        while part := sock.recv(1 << 16):
            answer += part
    return answer
