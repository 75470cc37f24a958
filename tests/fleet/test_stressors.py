import pytest

from melisma.fleet.stressors import DOWNLOADING, TRAINING, check_stressor


@pytest.mark.parametrize("name", ["", TRAINING, DOWNLOADING, "house.radio:play"])
def test_stressors_are_built_in_or_functions(name: str) -> None:
    check_stressor(name)


@pytest.mark.parametrize("name", ["trainin", "house.radio", "house.radio:", "a b:c"])
def test_an_unknown_stressor_is_an_error_that_names_the_others(name: str) -> None:
    with pytest.raises(ValueError, match=r"training.*package\.module:name"):
        check_stressor(name)
