"""Whatever sums one learner sends, it has a bounded part of the score."""

from math import isfinite, isnan, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from melisma.learning.trainer import Score
from melisma.live.orchestrator.combined_score import (
    MAX_LOSS_FACTOR,
    CombinedScore,
    combine_scores,
)

COUNTS = st.integers(1, 400)
DECLARED = 10**9
HONEST = Score(100, 50.0, 60, 100)
FORGED_COUNTS = st.sampled_from([0, 1, 7, 10**6, 2**53])
FORGED_SUMS = st.sampled_from([0.0, 5e-324, -1.0, 1e9, -1.7e308, 1.7e308, nan])


@st.composite
def honest_scores(draw: st.DrawFn) -> Score:
    samples = draw(COUNTS)
    return Score(samples, samples * draw(st.floats(0.5, 1.0)), draw(st.integers(0, samples)))


@st.composite
def forged_scores(draw: st.DrawFn) -> Score:
    labels = draw(FORGED_COUNTS)
    correct = draw(st.sampled_from([0, labels]))
    return Score(draw(FORGED_COUNTS), draw(FORGED_SUMS), correct, labels)


@given(st.lists(st.tuples(st.floats(1, 9), st.integers(0, 100)), min_size=2, max_size=9))
def test_scores_of_learners_with_similar_data_are_those_of_all_samples(
    parts: list[tuple[float, int]],
) -> None:
    scores = [Score(100, 100 * loss, correct) for loss, correct in parts]
    whole = sum(scores, Score(0, 0.0, 0, 0))
    combined = combine_scores(scores, [900] * len(scores))
    assert combined.samples == whole.samples
    assert combined.loss == pytest.approx(whole.loss)
    assert combined.accuracy == pytest.approx(whole.accuracy)


@given(st.lists(honest_scores(), min_size=2, max_size=12), forged_scores())
def test_a_forged_evaluation_has_at_most_half_of_the_score(
    honest: list[Score], forged: Score
) -> None:
    declared = [score.samples for score in honest]
    combined = combine_scores([*honest, forged], [*declared, DECLARED])
    losses = [score.loss for score in honest]
    accuracies = [score.accuracy for score in honest]
    assert isfinite(combined.loss)
    assert abs(combined.loss) <= MAX_LOSS_FACTOR * max(losses)
    assert min(accuracies) / 2 - 1e-9 <= combined.accuracy <= (max(accuracies) + 1) / 2 + 1e-9
    assert combined.samples <= 2 * sum(declared)


@pytest.mark.parametrize("learners", [3, 10, 100])
@pytest.mark.parametrize("loss_sum", [0.0, 1e300])
def test_one_among_many_hardly_counts(learners: int, loss_sum: float) -> None:
    forged = Score(2**53, loss_sum, 2**53, 2**53)
    honest = [HONEST] * (learners - 1)
    most = min(0.5, 4 / (learners + 3))
    combined = combine_scores([*honest, forged], [*[100] * (learners - 1), DECLARED])
    assert combined.accuracy == pytest.approx(0.6 + 0.4 * most)
    assert combined.loss == pytest.approx(0.5 * (1 - most) + most * (5.0 if loss_sum else 0.0))


def test_labels_count_no_more_than_those_of_others() -> None:
    forged = Score(1, 0.5, 0, 2**53)
    combined = combine_scores([HONEST, HONEST, forged], [100, 100, 100])
    assert combined.accuracy == pytest.approx(120 / 202)
    none = Score(100, 50.0, 0, 0)
    assert isnan(combine_scores([none, none, forged], [100, 100, 100]).accuracy)
    assert combine_scores([HONEST, HONEST, none], [100] * 3).accuracy == pytest.approx(0.6)


def test_a_learner_without_samples_does_not_count() -> None:
    forged = Score(0, 1e300, 2**53, 2**53)
    expected = combine_scores([HONEST], [100])
    assert expected == CombinedScore(100.0, 0.5, 0.6)
    assert combine_scores([HONEST, forged], [100, 100]) == expected
    assert combine_scores([HONEST, HONEST], [100, 0]) == expected
    assert combine_scores([], []).samples == 0


def test_a_model_is_rejected_by_more_than_half_of_the_learners_only() -> None:
    bad = Score(100, nan, 0, 100)
    assert combine_scores([HONEST, bad], [100, 100]).loss == 0.5
    assert isnan(combine_scores([HONEST, bad, bad], [100] * 3).loss)
