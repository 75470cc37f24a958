"""Runs whose learners are all gone for a time."""

from melisma.live.orchestrator.mailbox import MAX_ABSENCE_S, Mailboxes


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
