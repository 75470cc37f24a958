"""Code of a task runs on a device only if its owner allowed it by name, or trusts its bundle."""

import hashlib
import os
import stat
import sys
import zipfile
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

import pytest

from melisma.errors import DataError, MelismaError, SettingError
from melisma.live.code_bundle import CodeBundle, collect_bundle
from melisma.live.learner import trusted_code
from melisma.live.learner.trusted_code import (
    MAX_BUNDLES,
    defining_modules,
    extract_bundle,
    install_bundle,
    permit_model,
)
from melisma.live.protocol import BundleRef

TRACE = "import pathlib; pathlib.Path({!r}).touch()\n"


class Served:
    """Serves one bundle."""

    def __init__(self, content: bytes) -> None:
        self.content, self.names = content, list[str]()

    def fetch(self, name: str, start: int = 0) -> Iterator[bytearray]:
        self.names.append(name)
        for at in range(start, len(self.content), 100):
            yield bytearray(self.content[at : at + 100])

    @property
    def ref(self) -> BundleRef:
        return BundleRef(hashlib.sha256(self.content).hexdigest(), len(self.content))


@pytest.fixture(autouse=True)
def own_modules(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Forget the modules and folders that a test adds."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        del sys.modules[name]


def zipped(files: dict[str, bytes], mode: int = 0o100644) -> bytes:
    buffer = BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in files.items():
            entry = zipfile.ZipInfo(name)
            entry.external_attr = mode << 16
            archive.writestr(entry, content)
    return buffer.getvalue()


@pytest.mark.parametrize("name", ["os:system", "subprocess:run", "shutil:rmtree", "builtins:exec"])
def test_a_name_that_the_owner_did_not_allow_is_not_imported(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(trusted_code, "import_object", pytest.fail)
    for allowed in ((), ("own_net",), ("o",), ("os.path",)):
        with pytest.raises(SettingError, match="does not run: start it with --allow-module"):
            permit_model(name, allowed, None, None)


@pytest.mark.parametrize("name", ["os:path:join", "os.:system", ":x", "os:system ", "os\n:system"])
def test_a_name_that_is_no_import_path_is_refused(name: str) -> None:
    with pytest.raises(SettingError, match=r"expected package.module:name"):
        permit_model(name, ["os"], None, None)


def test_built_in_models_need_no_permission() -> None:
    permit_model("lenet", (), None, None)


def test_what_an_allowed_module_has_imported_is_not_allowed(tmp_path: Path) -> None:
    (tmp_path / "own_tools.py").write_text("from shutil import rmtree\nclass Net: ...")
    sys.path.append(str(tmp_path))
    permit_model("own_tools:Net", ["own_tools"], None, None)
    with pytest.raises(SettingError, match="own_tools:rmtree is defined in shutil, which is not"):
        permit_model("own_tools:rmtree", ["own_tools"], None, None)


def test_a_refusal_says_how_to_allow_the_code(tmp_path: Path) -> None:
    ref = BundleRef("0" * 64, 10)
    with pytest.raises(SettingError, match=r"--trust-code .* or with --allow-module own_net"):
        permit_model("own_net:Net", (), ref, None)


def test_a_trusted_bundle_is_fetched_checked_and_used(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "own_net.py").write_text("from own_part import size\nclass Net: size = size")
    (source / "own_part.py").write_text("size = 3")
    bundle = collect_bundle("own_net:Net", [str(source)])
    assert bundle is not None
    served = Served(bundle.content)
    permit_model("own_net:Net", (), served.ref, (served, tmp_path / "code"))
    permit_model("own_net:Net", (), served.ref, (served, tmp_path / "code"))
    assert served.names == [bundle.file_name]
    assert sys.modules["own_net"].Net.size == 3
    folder = tmp_path / "code" / bundle.sha256
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / "own_net.py").stat().st_mode) == 0o600


def test_with_trust_only_modules_of_the_bundle_are_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trusted_code, "import_object", pytest.fail)
    served = Served(zipped({"own_net.py": b""}))
    with pytest.raises(SettingError, match="the bundle of the task does not contain os"):
        permit_model("os:system", (), served.ref, (served, tmp_path / "code"))
    with pytest.raises(SettingError, match="offers no source"):
        permit_model("os:system", (), None, (served, tmp_path / "code"))
    served = Served(zipped({"os.py": b""}))
    with pytest.raises(SettingError, match="is hidden by one that is installed"):
        permit_model("os:system", (), served.ref, (served, tmp_path / "code"))


def test_a_bundle_with_another_hash_or_size_is_refused_and_not_extracted(tmp_path: Path) -> None:
    served = Served(zipped({"own_net.py": TRACE.format(str(tmp_path / "ran")).encode()}))
    for ref in (
        BundleRef("0" * 64, len(served.content)),
        BundleRef(served.ref.sha256, len(served.content) - 1),
    ):
        with pytest.raises(DataError, match=r"SHA-256|exceeds"):
            install_bundle(ref, served, tmp_path / "code")
    assert list((tmp_path / "code").iterdir()) == []
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "name",
    [
        *("/etc/own.py", "../own.py", "a/../../own.py", "a//own.py", "./own.py", "a\\own.py"),
        *("C:own.py", "own.so", "own.pth", "own", "a/", ".own.py", "a b.py"),
        *("sitecustomize.pyc", "ö.py", "-x.py"),
    ],
)
def test_a_file_that_is_no_python_file_inside_the_bundle_is_refused(
    tmp_path: Path, name: str
) -> None:
    with pytest.raises(DataError):
        extract_bundle(zipped({"good.py": b"", name: b""}), tmp_path / "code")
    assert not (tmp_path / "code").exists()


@pytest.mark.parametrize("mode", [stat.S_IFLNK | 0o777, stat.S_IFIFO | 0o600, stat.S_IFDIR | 0o700])
def test_links_and_devices_are_refused(tmp_path: Path, mode: int) -> None:
    with pytest.raises(DataError, match="expected Python files"):
        extract_bundle(zipped({"own.py": b"/etc/passwd"}, mode), tmp_path / "code")


def test_bombs_duplicates_and_damaged_files_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = zipped({"own.py": b"x = 1\n" * 100})
    monkeypatch.setattr(trusted_code, "MAX_BUNDLE_BYTES", 500)
    with pytest.raises(DataError, match="exceed 500 bytes"):
        extract_bundle(good, tmp_path)
    monkeypatch.undo()
    monkeypatch.setattr(trusted_code, "MAX_BUNDLE_FILES", 1)
    with pytest.raises(DataError, match="has 2 files"):
        extract_bundle(zipped({"a.py": b"", "b.py": b""}), tmp_path)
    for at in range(0, len(good), 7):
        damaged = bytearray(good)
        damaged[at] ^= 0xFF
        try:
            extract_bundle(bytes(damaged), tmp_path / str(at))
        except MelismaError:
            continue
    with pytest.raises(DataError, match="not a valid zip"):
        extract_bundle(b"nothing", tmp_path)


def test_only_the_bundles_that_were_used_last_are_kept(tmp_path: Path) -> None:
    folder = tmp_path / "code"
    (folder / "of-the-owner").mkdir(parents=True)
    (folder / ".part-killed").mkdir()
    os.utime(folder / ".part-killed", (0, 0))
    bundles = [Served(zipped({f"m{number}.py": b""})) for number in range(MAX_BUNDLES + 1)]
    for age, served in enumerate(bundles[:-1], 1):
        path = install_bundle(served.ref, served, folder)
        os.utime(path, (age, age))
    assert install_bundle(bundles[0].ref, bundles[0], folder).is_dir()
    install_bundle(bundles[-1].ref, bundles[-1], folder)
    kept = {bundles[0].ref.sha256, *(served.ref.sha256 for served in bundles[2:])}
    assert {path.name for path in folder.iterdir()} == kept | {"of-the-owner"}


def test_the_modules_of_an_own_task_are_the_named_one_and_the_one_that_defines_it() -> None:
    assert defining_modules("lenet") == ()
    assert defining_modules("tests.live.tiny_task:Linear") == ("tests.live.tiny_task",)
    named = "melisma.live.learner.agent:ShardFeed"
    assert defining_modules(named) == ("melisma.live.learner.agent", "melisma.live.learner.fetcher")


def test_a_bundle_knows_its_name() -> None:
    assert CodeBundle(b"x").file_name == f"bundle-{hashlib.sha256(b'x').hexdigest()}.zip"
