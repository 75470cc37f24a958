"""The process of a learner: the error that ended it is the one that its owner sees."""

from pathlib import Path
from typing import Any

import pytest

from melisma.errors import (
    AxonError,
    DataError,
    MelismaError,
    RefusedError,
    SettingError,
    SupersededError,
    UnauthorizedError,
    UnreachableError,
)
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


@pytest.mark.parametrize(
    "error",
    [
        DataError("no samples"),
        RefusedError("the run has ended"),
        SupersededError("replaced"),
        ZeroDivisionError("no samples"),
    ],
)
def test_the_log_says_why_before_the_orchestrator_can_end_the_process(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: Exception,
) -> None:
    logged = []

    class Agent(FailingAgent):
        def run(self) -> None:
            raise error

    def call(method: str, *_: Any) -> Any:
        if method == "register":
            return protocol.to_builtins(protocol.RegisterResponse(0, "r", TASK, ()))
        logged.append(capsys.readouterr().err)
        return None

    settings = LearnerSettings(name="a", orchestrator=("http://127.0.0.1:9",), cache=str(tmp_path))
    learner = LearnerProcess(settings)
    monkeypatch.setattr(learner_process, "Agent", Agent)
    monkeypatch.setattr(learner._orchestrator, "call", call)
    with pytest.raises(MelismaError):
        learner.run()
    (text,) = logged
    assert str(error) in text


def test_an_error_before_registration_is_logged_and_not_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    calls = []

    def call(method: str, *_: Any) -> Any:
        calls.append(method)
        raise UnauthorizedError("the token is unknown")

    settings = LearnerSettings(name="a", orchestrator=("http://127.0.0.1:9",), cache=str(tmp_path))
    learner = LearnerProcess(settings)
    monkeypatch.setattr(learner._orchestrator, "call", call)
    with pytest.raises(UnauthorizedError):
        learner.run()
    assert calls == ["register"]
    assert capsys.readouterr().err == "the token is unknown\n"
