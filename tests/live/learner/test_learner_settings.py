"""The settings of a learner process."""

import subprocess
import sys

import msgspec
import pytest

from melisma.live.learner.learner_settings import LearnerSettings


def test_settings_survive_a_round_trip_and_a_misspelt_one_is_refused() -> None:
    settings = LearnerSettings(name="a", orchestrator=("http://127.0.0.1:9",), cache="c")
    content = msgspec.json.encode(settings)
    assert msgspec.json.decode(content, type=LearnerSettings) == settings
    with pytest.raises(msgspec.ValidationError, match="cache_byte"):
        msgspec.json.decode(content.replace(b"cache_bytes", b"cache_byte"), type=LearnerSettings)


def test_settings_need_no_numpy() -> None:
    code = "import sys, melisma.live.learner.learner_settings; print('numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert done.stdout.strip() == b"False"
