from pathlib import Path

import pytest

from melisma.errors import SettingError
from melisma.fleet.availability import CHANGE_NAMES, Changes
from melisma.fleet.files.trace_file import read_trace

HEADER = "learner,at_s,event\n"
NAMES = ("ada", "bob, the 2nd", "cy")
ENDS = "'ada' to 'cy'"


def trace(tmp_path: Path, content: str, asked: int | None = None) -> Changes:
    path = tmp_path / "phones.csv"
    path.write_bytes(content.encode())
    return read_trace(path, NAMES, asked)


def rows(changes: Changes) -> list[tuple[float, str, str]]:
    columns = zip(
        changes.at_s.tolist(), changes.learners.tolist(), changes.kinds.tolist(), strict=True
    )
    return [(at_s, NAMES[learner], CHANGE_NAMES[what]) for at_s, learner, what in columns]


def refusal(tmp_path: Path, content: str, asked: int | None = None) -> str:
    with pytest.raises(SettingError) as caught:
        trace(tmp_path, content, asked)
    said = str(caught.value)
    assert said.startswith(f"{tmp_path / 'phones.csv'}: ")
    assert "\n" not in said
    return said.removeprefix(f"{tmp_path / 'phones.csv'}: ")


def test_changes_are_sorted_by_time_and_then_by_learner(tmp_path: Path) -> None:
    content = HEADER + 'cy,20,sleep\ncy,30.5,wake\n"bob, the 2nd",20,leave\nada,1e1,join\n'
    assert rows(trace(tmp_path, content)) == [
        (10.0, "ada", "join"),
        (20.0, "bob, the 2nd", "leave"),
        (20.0, "cy", "sleep"),
        (30.5, "cy", "wake"),
    ]


def test_changes_of_one_instant_keep_the_order_of_the_file(tmp_path: Path) -> None:
    content = HEADER + "ada,5,sleep\nada,5,wake\nada,5,sleep\nada,5,wake\nada,5,leave\n"
    assert [what for _, _, what in rows(trace(tmp_path, content))] == [
        *("sleep", "wake") * 2,
        "leave",
    ]


@pytest.mark.parametrize(
    "content", [HEADER, HEADER + "\n\n", HEADER.strip(), "\ufeff" + HEADER, HEADER[:-1] + "\r\n"]
)
def test_a_header_alone_changes_nothing(tmp_path: Path, content: str) -> None:
    assert len(trace(tmp_path, content)) == 0


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "line 1: ''; expected 'learner,at_s,event'"),
        ("ada,1,join\n", "line 1: 'ada,1,join'; expected 'learner,at_s,event'"),
        (HEADER + "ada,1\n", "line 2: 'ada,1'; expected learner, at_s, event"),
        (
            HEADER + "ada,1,join\n\nflo,2,join\n",
            f"line 4: no learner is called 'flo'; expected one of the 3 of this fleet, {ENDS}",
        ),
        (HEADER + "Adda,1,join\n", "line 2: no learner is called 'Adda'; did you mean ada?"),
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
def test_what_is_wrong_is_said_with_its_line(tmp_path: Path, content: str, said: str) -> None:
    assert refusal(tmp_path, content) == said


@pytest.mark.parametrize(
    ("before", "word", "said"),
    [
        ("", "wake", "'ada' has wake first; expected join, leave, sleep"),
        ("join", "join", "'ada' has join after join; expected leave, sleep"),
        ("join", "wake", "'ada' has wake after join; expected leave, sleep"),
        ("sleep", "sleep", "'ada' has sleep after sleep; expected leave, wake"),
        ("sleep", "join", "'ada' has join after sleep; expected leave, wake"),
        ("sleep wake", "wake", "'ada' has wake after wake; expected leave, sleep"),
        ("join leave", "join", "'ada' has join after leave; expected nothing: it left for good"),
    ],
)
def test_an_impossible_order_is_refused(tmp_path: Path, before: str, word: str, said: str) -> None:
    words = [*before.split(), word]
    lines = "".join(f"ada,{at_s},{each}\n" for at_s, each in enumerate(words))
    assert refusal(tmp_path, HEADER + lines) == f"line {1 + len(words)}: {said}"


def test_a_name_that_another_size_of_the_fleet_would_have_is_explained(tmp_path: Path) -> None:
    said = refusal(tmp_path, HEADER + "phone-4,1,join\n", asked=3)
    assert said.startswith("line 2: no learner is called 'phone-4'; expected one of the 3")
    assert said.endswith("names depend on how many learners there are, and 3 were asked for")


def test_files_that_are_no_trace_are_named(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"none.csv: no such file or directory"):
        read_trace(tmp_path / "none.csv", NAMES)
    (tmp_path / "bytes.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SettingError, match=r"bytes.csv: not text in UTF-8"):
        read_trace(tmp_path / "bytes.csv", NAMES)
