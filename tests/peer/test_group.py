"""Names of nodes."""

import pytest

from melisma.errors import SettingError
from melisma.peer.group import check_node_name


@pytest.mark.parametrize("name", ["", "../x", "a/b", ".", "-x", "a b", "x" * 33, "é"])
def test_names_that_could_be_paths_raise(name: str) -> None:
    with pytest.raises(SettingError, match="is not a name for a node"):
        check_node_name(name)


@pytest.mark.parametrize("name", ["a", "pi-4.kitchen", "_x", "x" * 32])
def test_other_names_are_valid(name: str) -> None:
    check_node_name(name)
