"""Lines about callers that are refused."""

from melisma.live.orchestrator.refusal_log import INTERVAL_S, MAX_LINES, RefusalLog


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_each_host_and_reason_is_said_once_in_an_interval_and_the_rest_is_counted() -> None:
    lines: list[str] = []
    clock = Clock()
    log = RefusalLog(lines.append, clock)
    for _ in range(1000):
        log.add("10.0.0.7", "the token is invalid")
    log.add("10.0.0.8", "the token is invalid")
    assert lines == [
        "refused a caller from 10.0.0.7: the token is invalid",
        "refused a caller from 10.0.0.8: the token is invalid",
    ]
    clock.now_s = INTERVAL_S + 1
    log.add("10.0.0.7", "the token is invalid")
    assert lines[2:] == [
        "refused 999 more calls, for reasons stated before",
        "refused a caller from 10.0.0.7: the token is invalid",
    ]


def test_many_hosts_cannot_fill_the_log() -> None:
    lines: list[str] = []
    clock = Clock()
    log = RefusalLog(lines.append, clock)
    for number in range(10_000):
        log.add(f"10.0.{number // 256}.{number % 256}", "\x1b[2J")
    assert len(lines) == MAX_LINES
    assert not any("\x1b" in line for line in lines)
    clock.now_s = INTERVAL_S + 1
    log.add("10.0.0.7", "the token is invalid")
    assert lines[MAX_LINES].startswith("refused 9980 more calls, for these reasons or for others")


def test_one_repeated_call_is_counted_in_good_english() -> None:
    lines: list[str] = []
    clock = Clock()
    log = RefusalLog(lines.append, clock)
    for now_s in (0.0, 0.0, INTERVAL_S + 1):
        clock.now_s = now_s
        log.add("10.0.0.7", "the token is invalid")
    assert lines[1] == "refused 1 more call, for reasons stated before"
