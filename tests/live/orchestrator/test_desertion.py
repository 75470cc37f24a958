"""Runs whose learners are all gone for a time."""

from melisma.cycle.learner import MAX_ABSENCE_S
from melisma.live.orchestrator.mailbox import Mailboxes
from melisma.live.orchestrator.status_service import learner_state
from melisma.live.protocol import JoinRequest


def test_a_run_is_deserted_while_no_learner_calls_up_to_a_limit() -> None:
    mailboxes = Mailboxes(["a", "b"])
    for mailbox in mailboxes:
        mailbox.joined, mailbox.heard_s = True, 100.0
        mailbox.open_work, mailbox.silence_limit_s = (1, 1), 2.0
    assert not mailboxes.are_deserted(101.0)
    assert mailboxes.are_deserted(103.0)
    mailboxes[1].heard_s = 103.0
    assert not mailboxes.are_deserted(104.0)
    assert mailboxes.are_deserted(106.0)
    assert not mailboxes.are_deserted(103.0 + MAX_ABSENCE_S)


def test_the_wait_for_a_learner_ends_a_while_after_the_last_call() -> None:
    mailboxes = Mailboxes(["a", "b"])
    for mailbox in mailboxes:
        mailbox.heard_s = mailbox.called_s = 100.0
        mailbox.joined, mailbox.open_work, mailbox.silence_limit_s = True, (1, 1), 2.0
    assert mailboxes.awaited_until_s(101.0) is None
    assert mailboxes.awaited_until_s(103.0) == 100.0 + MAX_ABSENCE_S
    # Work was sent a moment ago: the learner has not had the time to answer.
    mailboxes[1].called_s = 103.0
    assert mailboxes.awaited_until_s(103.5) is None
    for mailbox in mailboxes:
        mailbox.joined = False
    assert mailboxes.awaited_until_s(104.0) == 100.0 + MAX_ABSENCE_S


def test_the_last_learner_is_shown_as_silent_although_it_has_not_left() -> None:
    mailbox = Mailboxes(["a"])[0]
    mailbox.request, mailbox.joined = JoinRequest("costs"), True
    mailbox.open_work, mailbox.silence_limit_s = (1, 1), 2.0
    assert learner_state(mailbox, 1.0) == "training"
    assert learner_state(mailbox, 3.0) == "silent"


def test_work_that_is_given_to_a_learner_is_no_sign_of_life() -> None:
    mailboxes = Mailboxes(["a"])
    mailbox = mailboxes[0]
    mailbox.joined, mailbox.heard_s, mailbox.called_s = True, 100.0, 103.0
    mailbox.open_work, mailbox.silence_limit_s = (2, 1), 2.0
    assert mailboxes.are_deserted(103.0)


def test_a_learner_that_waits_for_work_may_be_silent_between_polls() -> None:
    mailboxes = Mailboxes(["a"])
    mailboxes[0].joined, mailboxes[0].heard_s = True, 100.0
    assert not mailboxes.are_deserted(130.0)
    assert mailboxes.are_deserted(170.0)
