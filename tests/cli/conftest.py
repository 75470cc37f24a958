"""Forecasts that plans of the same files share."""

from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import pytest

from melisma.fleet.fleet import Fleet
from melisma.fleet.task import Task
from melisma.simulation.forecast import Forecast, forecast
from melisma.simulation.plans import plan_report

FORECASTS: dict[Any, Forecast] = {}


def find_forecast(task: Task, fleet: Fleet) -> Forecast:
    """Return the forecast, which is computed once for equal tasks and fleets."""
    if fleet.traces:
        return forecast(task, fleet)
    key = repr(task), contents(fleet)
    if key not in FORECASTS:
        FORECASTS[key] = forecast(task, fleet)
    return FORECASTS[key]


def contents(value: Any) -> Any:
    """Return what a dataclass holds, also in its arrays, as a key of a dictionary."""
    if is_dataclass(value):
        return tuple(contents(getattr(value, field.name)) for field in fields(value))
    if isinstance(value, dict):
        return tuple((key, contents(item)) for key, item in value.items())
    return (value.shape, value.tobytes()) if isinstance(value, np.ndarray) else value


@pytest.fixture
def shared_forecasts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compute each forecast once: most of the time of a plan is spent on it."""
    monkeypatch.setattr(plan_report, "forecast", find_forecast)
