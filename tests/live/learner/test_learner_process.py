"""The process of a learner: the error that ended it is the one that its owner sees."""

from pathlib import Path
from typing import Any

import pytest

from melisma.errors import AxonError, MelismaError, SettingError, SupersededError, UnreachableError
from melisma.live import protocol
from melisma.live.learner import learner_process
from melisma.live.learner.learner_process import LearnerProcess
from melisma.live.learner.learner_settings import LearnerSettings
from tests.live.orchestrator.served_run import TASK


class FailingAgent:
    """An agent that ends with an error of its device."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def run(self) -> None:
        raise SettingError("the cache is too small")


@pytest.mark.parametrize("error", [UnreachableError("no answer"), SupersededError("replaced")])
def test_a_failure_that_cannot_be_reported_is_still_the_one_that_is_raised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: AxonError
) -> None:
    reported = []

    def call(method: str, *arguments: Any) -> Any:
        if method == "register":
            return protocol.to_builtins(protocol.RegisterResponse(0, "r", TASK, ()))
        reported.append(arguments[1])
        raise error

    settings = LearnerSettings(name="a", orchestrator=("http://127.0.0.1:9",), cache=str(tmp_path))
    learner = LearnerProcess(settings)
    monkeypatch.setattr(learner_process, "Agent", FailingAgent)
    monkeypatch.setattr(learner._orchestrator, "call", call)
    with pytest.raises(MelismaError, match="a: the cache is too small") as caught:
        learner.run()
    assert isinstance(caught.value.__cause__, SettingError)
    assert reported == ["a: the cache is too small"]
