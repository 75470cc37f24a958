"""Text from other machines cannot change what a terminal shows."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from melisma.text import MAX_CHARS, visible, visible_lines, visible_part


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain ünïcode text", "plain ünïcode text"),
        ("\x1b[2J\x1b]0;title\x07", r"\x1b[2J\x1b]0;title\x07"),
        ("one\rtwo\ntwo\tthree", r"one\rtwo\ntwo\tthree"),
        ("\x9b31m", r"\x9b31m"),
        ("abc\u202etxt.exe\u2066", r"abc\u202etxt.exe\u2066"),
        ("\ud800 \U000e0001 \x00", r"\ud800 \U000e0001 \x00"),
    ],
)
def test_characters_that_do_not_print_are_escaped(text: str, shown: str) -> None:
    assert visible(text) == shown


def test_a_long_text_is_cut() -> None:
    assert visible("a" * (MAX_CHARS + 7)) == "a" * MAX_CHARS + "... (7 more characters)"


@given(st.text())
def test_the_result_always_prints_on_one_line(text: str) -> None:
    assert visible(text).isprintable()
    assert visible_part(text).isprintable()


@given(st.text())
def test_lines_and_tabs_stay_in_text_of_several_lines(text: str) -> None:
    shown = visible_lines(text)
    assert shown.replace("\n", "").replace("\t", "").isprintable()
    assert shown.count("\n") == text.count("\n")


def test_text_of_several_lines_is_cut_too() -> None:
    assert len(visible_lines("\x1b" * 10**6)) < 10**6
