"""The registry: names are unique, changes of other processes are seen, revoked stays revoked."""

import subprocess
import sys
from pathlib import Path

import pytest

from melisma.errors import RefusedError, SettingError
from melisma.live.orchestrator import registry as module
from melisma.live.orchestrator.registry import Registry, clean_name


def fingerprint(number: int) -> str:
    return f"sha256:{number:064x}"


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    return Registry(tmp_path / "learners.json", now=lambda: 1000.0)


def test_a_device_is_found_by_its_fingerprint_alone(registry: Registry) -> None:
    assert registry.find(fingerprint(1)) is None
    added = registry.add(fingerprint(1), "pi", "10.0.0.7")
    assert registry.find(fingerprint(1)) == added
    assert (added.name, added.enrolled_at, added.host) == ("pi", 1000.0, "10.0.0.7")
    assert registry.find(fingerprint(2)) is None


def test_names_are_unique(registry: Registry) -> None:
    names = [registry.add(fingerprint(number), "pi").name for number in range(4)]
    assert names == ["pi", "pi-2", "pi-3", "pi-4"]
    assert registry.add(fingerprint(1), "another").name == "pi-2"
    long = [registry.add(fingerprint(number), "x" * 60).name for number in (10, 11)]
    assert long == ["x" * 40, "x" * 38 + "-2"]


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("Ada's Pi\x1b[31m", "Ada-s-Pi-31m"),
        ("../../etc", "etc"),
        ("größe", "gr-e"),
        ("", "device"),
        ("💻", "device"),
        ("joining:sha256", "joining-sha256"),
    ],
)
def test_a_name_has_only_harmless_characters(given: str, name: str) -> None:
    assert clean_name(given) == name


@pytest.mark.parametrize("name", ["owner", "anonymous"])
def test_names_with_a_meaning_are_not_given(registry: Registry, name: str) -> None:
    assert registry.add(fingerprint(1), name).name == f"{name}-2"
    with pytest.raises(SettingError, match="is not a name for a learner: use up to 40 of a-z, "):
        registry.rename(f"{name}-2", name)


def test_a_revoked_device_stays_known_as_revoked(registry: Registry) -> None:
    registry.add(fingerprint(1), "pi")
    registry.revoke("pi")
    assert registry.learners() == []
    known = registry.find(fingerprint(1))
    assert known is not None
    assert known.revoked_at == 1000.0
    with pytest.raises(RefusedError, match=r"pi was revoked: .*--new-identity"):
        registry.add(fingerprint(1), "pi")
    assert registry.add(fingerprint(2), "pi").name == "pi"


def test_a_device_can_be_renamed(registry: Registry) -> None:
    registry.add(fingerprint(1), "pi")
    registry.add(fingerprint(2), "jetson")
    assert registry.rename("pi", "kitchen").fingerprint == fingerprint(1)
    assert [item.name for item in registry.learners()] == ["jetson", "kitchen"]
    for wrong in ("jetson", "a b", "", "x" * 41):
        with pytest.raises(SettingError):
            registry.rename("kitchen", wrong)
    with pytest.raises(SettingError, match="did you mean kitchen"):
        registry.rename("kitschen", "pi")


def test_the_host_of_a_device_is_recorded(registry: Registry) -> None:
    registry.add(fingerprint(1), "pi", "10.0.0.7")
    for host in ("10.0.0.9", None):
        registry.record_host(fingerprint(1), host)
        assert registry.get("pi").host == "10.0.0.9"
    registry.record_host(fingerprint(2), "10.0.0.9")
    assert len(registry.learners()) == 1


def test_the_file_is_readable_by_its_owner_alone(registry: Registry, tmp_path: Path) -> None:
    registry.add(fingerprint(1), "pi")
    registry.rename("pi", "kitchen")
    assert {path.name for path in tmp_path.iterdir()} == {"learners.json", "learners.json.lock"}
    assert all(path.stat().st_mode & 0o077 == 0 for path in tmp_path.iterdir())


def test_changes_of_another_process_are_seen(registry: Registry, tmp_path: Path) -> None:
    registry.add(fingerprint(1), "pi")
    code = (
        "import sys; from pathlib import Path; "
        "from melisma.live.orchestrator.registry import Registry; "
        "Registry(Path(sys.argv[1])).revoke('pi')"
    )
    subprocess.run([sys.executable, "-c", code, tmp_path / "learners.json"], check=True)
    known = registry.find(fingerprint(1))
    assert known is not None
    assert known.revoked_at is not None


def test_processes_that_add_at_once_lose_no_device(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; "
        "from melisma.live.orchestrator.registry import Registry; "
        "registry = Registry(Path(sys.argv[1])); first = int(sys.argv[2]); "
        "[registry.add(f'sha256:{first + i:064x}', 'pi') for i in range(20)]"
    )
    path = tmp_path / "learners.json"
    processes = [
        subprocess.Popen([sys.executable, "-c", code, path, str(first)]) for first in (0, 100)
    ]
    assert [process.wait() for process in processes] == [0, 0]
    names = {item.name for item in Registry(path).learners()}
    assert names == {"pi", *(f"pi-{number}" for number in range(2, 41))}


def test_a_registry_has_a_limit(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_ENROLLED", 2)
    for number in range(2):
        registry.add(fingerprint(number), "pi")
    with pytest.raises(RefusedError, match="2 devices"):
        registry.add(fingerprint(2), "pi")


def test_a_damaged_file_is_named(registry: Registry, tmp_path: Path) -> None:
    (tmp_path / "learners.json").write_text('{"format": 2}')
    with pytest.raises(SettingError, match=r"cannot read the registry .*learners\.json"):
        registry.learners()


def test_the_state_is_in_melisma_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MELISMA_HOME", str(tmp_path / "home"))
    Registry().add(fingerprint(1), "pi")
    assert (tmp_path / "home" / "orchestrator" / "learners.json").is_file()
    assert (tmp_path / "home" / "orchestrator").stat().st_mode & 0o777 == 0o700
