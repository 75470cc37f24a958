"""Tokens: the secret opens, what was issued from it opens as long as it says, all else does not."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from melisma.axon.server.tokens import TokenChecker, issue_token
from melisma.errors import SettingError, UnauthorizedError

SECRET = "a.secret with spaces, größe"


@pytest.fixture
def check() -> TokenChecker:
    return TokenChecker(SECRET)


def expiry_of(token: str) -> int:
    return int(token.split(".")[1])


def refused(
    check: TokenChecker, header: str | None, call_id: str = "", match: str | None = None
) -> None:
    with pytest.raises(UnauthorizedError, match=match):
        check.check(header, call_id)


def test_without_a_secret_anyone_may_call() -> None:
    check = TokenChecker(None)
    assert check.check(None) == check.check("Bearer x") == "anonymous"


def test_an_empty_secret_is_refused_since_it_would_let_everyone_in() -> None:
    with pytest.raises(SettingError, match="pass None"):
        TokenChecker("")


def test_the_secret_itself_is_a_token(check: TokenChecker) -> None:
    assert check.check(f"Bearer {SECRET}") == check.check(SECRET) == "owner"


@pytest.mark.parametrize("header", [None, ""])
def test_without_a_token_the_caller_is_told_how_to_give_one(
    check: TokenChecker, header: str | None
) -> None:
    refused(check, header, match=re.escape("connect(address, token=...)"))


@given(st.from_regex(r"\A[A-Za-z0-9_-]+\Z"), st.text(min_size=1), st.booleans())
def test_an_issued_token_opens_the_worker_with_its_secret_and_no_other(
    name: str, secret: str, once: bool
) -> None:
    if any("\ud800" <= letter <= "\udfff" for letter in secret):
        return
    header = f"Bearer {issue_token(secret, name, once=once)}"
    assert TokenChecker(secret).check(header, "id") == name
    refused(TokenChecker(secret + "x"), header, "id", "the token is invalid for this worker")


@given(st.data())
def test_a_token_with_anything_changed_is_forged(data: st.DataObject) -> None:
    token = issue_token(SECRET, "learner-1", lifetime_s=60)
    place = data.draw(st.integers(0, len(token)))
    cut = data.draw(st.integers(0, 2))
    put = data.draw(st.text(st.characters(max_codepoint=255), max_size=2))
    forged = token[:place] + put + token[place + cut :]
    if forged != token:
        refused(TokenChecker(SECRET), f"Bearer {forged}")


@given(st.text(st.characters(max_codepoint=255)))
def test_no_other_text_opens(header: str) -> None:
    refused(TokenChecker(SECRET), header)


@pytest.mark.parametrize(
    "header", ["Bearer", "Bearer ", "Bearer .", "....", "a.0.many.b", "Bearer a.0.many1."]
)
def test_a_token_without_its_parts_is_refused(check: TokenChecker, header: str) -> None:
    refused(check, header, match="the token is invalid for this worker")


def test_a_token_opens_up_to_its_last_second_and_not_beyond() -> None:
    token = issue_token(SECRET, "guest", lifetime_s=60)
    last = expiry_of(token)
    assert TokenChecker(SECRET, now=lambda: last).check(token) == "guest"
    refused(TokenChecker(SECRET, now=lambda: last + 0.1), token, match="guest has expired")


def test_a_token_without_a_lifetime_never_expires() -> None:
    assert TokenChecker(SECRET, now=lambda: 1e12).check(issue_token(SECRET, "guest")) == "guest"


def test_a_token_that_is_issued_too_late_never_opens(check: TokenChecker) -> None:
    refused(check, issue_token(SECRET, "guest", lifetime_s=-5), match="expired")


def test_a_token_for_many_calls_opens_many(check: TokenChecker) -> None:
    token = issue_token(SECRET, "guest")
    assert {check.check(token, str(number)) for number in range(9)} == {"guest"}


def test_a_token_for_one_call_opens_that_call_as_often_as_it_is_retried(
    check: TokenChecker,
) -> None:
    token = issue_token(SECRET, "guest", once=True)
    assert [check.check(token, "id") for _ in range(3)] == ["guest"] * 3


def test_a_token_for_one_call_does_not_open_another(check: TokenChecker) -> None:
    token = issue_token(SECRET, "guest", once=True)
    check.check(token, "first")
    refused(check, token, "second", "was for one call and has been used")
    assert check.check(token, "first") == "guest"


def test_a_token_for_one_call_opens_nothing_that_has_no_id(check: TokenChecker) -> None:
    token = issue_token(SECRET, "guest", once=True)
    refused(check, token, "", "has no call id")
    assert check.check(token, "first") == "guest"
    refused(check, token, "", "has no call id")


def test_two_tokens_for_one_call_each_open_one(check: TokenChecker) -> None:
    first, second = (issue_token(SECRET, "guest", once=True) for _ in range(2))
    assert check.check(first, "1") == check.check(second, "2") == "guest"
    refused(check, first, "2")


@pytest.mark.parametrize("name", ["", "a.b", "a b", "größe", "a\n", "密"])
def test_a_name_that_would_not_survive_the_journey_is_refused(name: str) -> None:
    with pytest.raises(SettingError, match=r"token name .* is invalid"):
        issue_token(SECRET, name)


def test_a_token_for_one_call_does_not_outlive_the_memory_of_that_call() -> None:
    now = 0.0
    check = TokenChecker(SECRET, 60.0, now=lambda: now)
    header = f"Bearer {issue_token(SECRET, 'guest', once=True)}"
    assert check.check(header, "first") == "guest"
    now = 59.0
    assert check.check(header, "first") == "guest"
    now = 60.0
    refused(check, header, "first", "has been used")
    assert check.check(header, "first", starts_call=False) == "guest"
