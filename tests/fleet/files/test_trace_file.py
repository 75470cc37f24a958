from pathlib import Path

import pytest

from melisma.errors import SettingError
from melisma.fleet.availability import CHANGE_NAMES, Changes
from melisma.fleet.files.trace_file import read_trace

HEADER = "learner,at_s,event\n"
NAMES = ("ada", "bob, the 2nd", "cy")
ENDS = "'ada' to 'cy'"


def read(tmp_path: Path, content: str, learners: int | None = None) -> Changes:
    path = tmp_path / "phones.csv"
    path.write_bytes(content.encode())
    return read_trace(path, NAMES, learners)


def rows(changes: Changes) -> list[tuple[float, str, str]]:
    columns = zip(
        changes.at_s.tolist(), changes.learners.tolist(), changes.kinds.tolist(), strict=True
    )
    return [(at_s, NAMES[learner], CHANGE_NAMES[event]) for at_s, learner, event in columns]


def read_error(tmp_path: Path, content: str, learners: int | None = None) -> str:
    with pytest.raises(SettingError) as caught:
        read(tmp_path, content, learners)
    message = str(caught.value)
    assert message.startswith(f"{tmp_path / 'phones.csv'}: ")
    assert "\n" not in message
    return message.removeprefix(f"{tmp_path / 'phones.csv'}: ")


def test_changes_are_sorted_by_time_and_then_by_learner(tmp_path: Path) -> None:
    content = HEADER + 'cy,20,sleep\ncy,30.5,wake\n"bob, the 2nd",20,leave\nada,1e1,join\n'
    assert rows(read(tmp_path, content)) == [
        (10.0, "ada", "join"),
        (20.0, "bob, the 2nd", "leave"),
        (20.0, "cy", "sleep"),
        (30.5, "cy", "wake"),
    ]


def test_changes_at_the_same_time_keep_the_order_of_the_file(tmp_path: Path) -> None:
    content = HEADER + "ada,5,sleep\nada,5,wake\nada,5,sleep\nada,5,wake\nada,5,leave\n"
    assert [event for _, _, event in rows(read(tmp_path, content))] == [
        *("sleep", "wake") * 2,
        "leave",
    ]


@pytest.mark.parametrize(
    "content", [HEADER, HEADER + "\n\n", HEADER.strip(), "\ufeff" + HEADER, HEADER[:-1] + "\r\n"]
)
def test_a_header_alone_is_an_empty_trace(tmp_path: Path, content: str) -> None:
    assert len(read(tmp_path, content)) == 0


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "line 1: header is ''; expected 'learner,at_s,event'"),
        ("ada,1,join\n", "line 1: header is 'ada,1,join'; expected 'learner,at_s,event'"),
        (HEADER + "ada,1\n", "line 2: 'ada,1'; expected learner, at_s, event"),
        (
            HEADER + "ada,1,join\n\nflo,2,join\n",
            f"line 4: unknown learner 'flo'; expected one of the 3 of this fleet, {ENDS}",
        ),
        (HEADER + "Adda,1,join\n", "line 2: unknown learner 'Adda'; did you mean ada?"),
        (
            HEADER + "ada,1,hop\n",
            "line 2: event is 'hop'; expected one of join, leave, sleep, wake",
        ),
        (HEADER + "ada,soon,join\n", "line 2: at_s is 'soon'; expected a number of at least 0"),
        (HEADER + "ada,,join\n", "line 2: at_s is ''; expected a number of at least 0"),
        (HEADER + "ada,-1,join\n", "line 2: at_s is '-1'; expected a number of at least 0"),
        (HEADER + "ada,nan,join\n", "line 2: at_s is 'nan'; expected a number of at least 0"),
        (HEADER + "ada,inf,join\n", "line 2: at_s is 'inf'; expected a number of at least 0"),
        (
            HEADER + "ada,9,join\ncy,3,join\nada,8,leave\n",
            "line 4: at_s is 8; expected at least 9, the last of 'ada'",
        ),
        (HEADER + 'ada,1,"join\n', "line 2: unexpected end of data"),
    ],
)
def test_errors_name_the_line(tmp_path: Path, content: str, message: str) -> None:
    assert read_error(tmp_path, content) == message


@pytest.mark.parametrize(
    ("before", "event", "message"),
    [
        ("", "wake", "wake is the event of 'ada' in its first line; expected join, leave or sleep"),
        ("join", "join", "join is the event of 'ada' after join; expected leave or sleep"),
        ("join", "wake", "wake is the event of 'ada' after join; expected leave or sleep"),
        ("sleep", "sleep", "sleep is the event of 'ada' after sleep; expected leave or wake"),
        ("sleep", "join", "join is the event of 'ada' after sleep; expected leave or wake"),
        ("sleep wake", "wake", "wake is the event of 'ada' after wake; expected leave or sleep"),
        (
            "join leave",
            "join",
            "join is the event of 'ada' after leave; expected no event after leave",
        ),
    ],
)
def test_an_impossible_order_is_an_error(
    tmp_path: Path, before: str, event: str, message: str
) -> None:
    events = [*before.split(), event]
    lines = "".join(f"ada,{at_s},{event}\n" for at_s, event in enumerate(events))
    assert read_error(tmp_path, HEADER + lines) == f"line {1 + len(events)}: {message}"


def test_an_unknown_name_is_explained_by_the_requested_number_of_learners(tmp_path: Path) -> None:
    message = read_error(tmp_path, HEADER + "phone-4,1,join\n", learners=3)
    assert message.startswith("line 2: unknown learner 'phone-4'; expected one of the 3")
    assert message.endswith("names depend on the number of learners, and 3 were requested")


def test_files_that_cannot_be_read_are_reported(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"none.csv: no such file or directory"):
        read_trace(tmp_path / "none.csv", NAMES)
    (tmp_path / "bytes.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SettingError, match=r"bytes.csv: not text in UTF-8"):
        read_trace(tmp_path / "bytes.csv", NAMES)
