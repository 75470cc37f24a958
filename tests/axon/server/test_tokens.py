"""Tokens: the secret and unexpired tokens issued from it are valid, all others are refused."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from melisma.axon.server.authentication import Credentials
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
        check.check(Credentials(header), call_id)


def test_without_a_secret_all_callers_are_accepted() -> None:
    check = TokenChecker(None)
    assert check.check(Credentials(None)) == check.check(Credentials("Bearer x")) == "anonymous"


def test_an_empty_secret_is_refused() -> None:
    with pytest.raises(SettingError, match="pass None"):
        TokenChecker("")


def test_the_secret_itself_is_a_token(check: TokenChecker) -> None:
    assert (
        check.check(Credentials(f"Bearer {SECRET}")) == check.check(Credentials(SECRET)) == "owner"
    )


@pytest.mark.parametrize("header", [None, ""])
def test_a_missing_token_is_refused_with_advice(check: TokenChecker, header: str | None) -> None:
    refused(check, header, match=re.escape("connect(address, token=...)"))


@given(st.from_regex(r"\A[A-Za-z0-9_-]+\Z"), st.text(min_size=1), st.booleans())
def test_an_issued_token_is_valid_only_for_its_secret(name: str, secret: str, once: bool) -> None:
    if any("\ud800" <= letter <= "\udfff" for letter in secret):
        return
    header = f"Bearer {issue_token(secret, name, once=once)}"
    assert TokenChecker(secret).check(Credentials(header), "id") == name
    refused(TokenChecker(secret + "x"), header, "id", "the token is invalid for this worker")


@given(st.data())
def test_a_modified_token_is_refused(data: st.DataObject) -> None:
    token = issue_token(SECRET, "learner-1", lifetime_s=60)
    place = data.draw(st.integers(0, len(token)))
    cut = data.draw(st.integers(0, 2))
    put = data.draw(st.text(st.characters(max_codepoint=255), max_size=2))
    forged = token[:place] + put + token[place + cut :]
    if forged != token:
        refused(TokenChecker(SECRET), f"Bearer {forged}")


@given(st.text(st.characters(max_codepoint=255)))
def test_any_other_text_is_refused(header: str) -> None:
    refused(TokenChecker(SECRET), header)


@pytest.mark.parametrize(
    "header", ["Bearer", "Bearer ", "Bearer .", "....", "a.0.many.b", "Bearer a.0.many1."]
)
def test_a_token_without_its_parts_is_refused(check: TokenChecker, header: str) -> None:
    refused(check, header, match="the token is invalid for this worker")


def test_a_token_is_valid_until_it_expires() -> None:
    token = issue_token(SECRET, "guest", lifetime_s=60)
    last = expiry_of(token)
    assert TokenChecker(SECRET, now=lambda: last).check(Credentials(token)) == "guest"
    refused(TokenChecker(SECRET, now=lambda: last + 0.1), token, match="guest has expired")


def test_a_token_without_a_lifetime_never_expires() -> None:
    assert (
        TokenChecker(SECRET, now=lambda: 1e12).check(Credentials(issue_token(SECRET, "guest")))
        == "guest"
    )


def test_a_token_with_a_negative_lifetime_is_never_valid(check: TokenChecker) -> None:
    refused(check, issue_token(SECRET, "guest", lifetime_s=-5), match="expired")


@pytest.mark.parametrize("lifetime_s", [float("nan"), float("inf")])
def test_a_lifetime_that_is_not_finite_is_refused(lifetime_s: float) -> None:
    with pytest.raises(SettingError, match=f"lifetime_s is {lifetime_s}; expected seconds, or"):
        issue_token(SECRET, "guest", lifetime_s=lifetime_s)


def test_a_token_is_valid_for_many_calls(check: TokenChecker) -> None:
    token = issue_token(SECRET, "guest")
    assert {check.check(Credentials(token), str(number)) for number in range(9)} == {"guest"}


def test_a_single_call_token_is_valid_for_retries(
    check: TokenChecker,
) -> None:
    token = issue_token(SECRET, "guest", once=True)
    assert [check.check(Credentials(token), "id") for _ in range(3)] == ["guest"] * 3


def test_a_single_call_token_is_refused_for_another_call(check: TokenChecker) -> None:
    token = issue_token(SECRET, "guest", once=True)
    check.check(Credentials(token), "first")
    refused(check, token, "second", "was for one call and has been used")
    assert check.check(Credentials(token), "first") == "guest"


def test_a_single_call_token_needs_a_call_id(check: TokenChecker) -> None:
    token = issue_token(SECRET, "guest", once=True)
    refused(check, token, "", "has no call id")
    assert check.check(Credentials(token), "first") == "guest"
    refused(check, token, "", "has no call id")


def test_two_single_call_tokens_are_independent(check: TokenChecker) -> None:
    first, second = (issue_token(SECRET, "guest", once=True) for _ in range(2))
    assert check.check(Credentials(first), "1") == check.check(Credentials(second), "2") == "guest"
    refused(check, first, "2")


@pytest.mark.parametrize("name", ["", "a.b", "a b", "größe", "a\n", "密"])
def test_an_invalid_token_name_is_refused(name: str) -> None:
    with pytest.raises(SettingError, match=r"token name .* is invalid"):
        issue_token(SECRET, name)


def test_a_single_call_token_expires_when_its_call_is_forgotten() -> None:
    now = 0.0
    check = TokenChecker(SECRET, 60.0, now=lambda: now)
    header = f"Bearer {issue_token(SECRET, 'guest', once=True)}"
    assert check.check(Credentials(header), "first") == "guest"
    now = 59.0
    assert check.check(Credentials(header), "first") == "guest"
    now = 60.0
    refused(check, header, "first", "has been used")
    assert check.check(Credentials(header), "first", starts_call=False) == "guest"
