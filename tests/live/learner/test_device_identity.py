"""The state of a device: one identity, and the orchestrators that know it."""

from pathlib import Path

import pytest

from melisma.errors import SettingError
from melisma.live.learner.device_identity import DeviceState


def test_a_device_has_one_identity_until_it_is_replaced(tmp_path: Path) -> None:
    state = DeviceState(tmp_path)
    first = state.create_identity()
    assert DeviceState(tmp_path).create_identity() == first
    state.remember("sha256:1", ["https://10.0.0.1:8000"], "pi")
    assert state.replace_identity() != first
    assert state.orchestrators() == []


def test_orchestrators_are_remembered_the_latest_first(tmp_path: Path) -> None:
    state = DeviceState(tmp_path)
    assert state.orchestrators() == []
    state.remember("sha256:1", ["https://10.0.0.1:8000"], "pi")
    state.remember("sha256:2", ["https://10.0.0.2:8000"], "pi")
    state.remember("sha256:1", ["https://10.0.0.3:8000", "https://10.0.0.1:8000"], "pi-2")
    latest, other = DeviceState(tmp_path).orchestrators()
    assert (latest.fingerprint, latest.name) == ("sha256:1", "pi-2")
    assert latest.addresses == ("https://10.0.0.3:8000", "https://10.0.0.1:8000")
    assert other.fingerprint == "sha256:2"


def test_the_files_are_readable_by_their_owner_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MELISMA_HOME", str(tmp_path / "home"))
    state = DeviceState()
    state.create_identity()
    state.remember("sha256:1", ["https://10.0.0.1:8000"], "pi")
    folder = tmp_path / "home" / "device"
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {"identity.pem", "orchestrators.json"} <= {path.name for path in folder.iterdir()}
    assert all(path.stat().st_mode & 0o077 == 0 for path in folder.iterdir())


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "orchestrators.json").write_text("{}")
    with pytest.raises(SettingError, match=r"orchestrators\.json .*delete it and join again"):
        DeviceState(tmp_path).orchestrators()
