import json
import sys
from pathlib import Path

import numpy as np
import pytest

from melisma import user_code
from melisma.user_code import describe_error, is_installed


@pytest.mark.parametrize("file", [json.__file__, np.__file__, user_code.__file__, "<frozen os>"])
def test_python_packages_and_this_one_are_installed(file: str) -> None:
    assert is_installed(file)


@pytest.mark.parametrize("prefix", [sys.prefix, sys.base_prefix])
@pytest.mark.parametrize("folder", ["2", "/src/app"])
def test_code_beside_an_environment_or_below_its_prefix_is_of_the_user(
    prefix: str, folder: str
) -> None:
    file = Path(prefix + folder) / "model.py"
    assert not is_installed(file)
    with pytest.raises(KeyError) as raised:
        exec(compile("raise KeyError", str(file), "exec"))
    assert describe_error(raised.value).endswith("(model.py, line 1)")
