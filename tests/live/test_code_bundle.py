"""The source of a task's own model: the modules that it imports, and no other file."""

import zipfile
from io import BytesIO
from pathlib import Path

import pytest

from melisma.errors import SettingError
from melisma.live import code_bundle
from melisma.live.code_bundle import CodeBundle, collect_bundle

FILES = {
    "own_net.py": "import own_layers, numpy\nfrom own_parts.deep import depth\nclass Net: ...",
    "own_layers.py": "import own_net",
    "own_parts/__init__.py": "",
    "own_parts/deep.py": "depth = 3",
    "own_secrets.py": "password = 'x'",
    "own_notes.txt": "",
    ".env": "",
    "numpy.py": "",
}


def write(folder: Path, files: dict[str, str] = FILES) -> Path:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def names(bundle: CodeBundle | None) -> list[str]:
    assert bundle is not None
    return zipfile.ZipFile(BytesIO(bundle.content)).namelist()


def test_a_bundle_holds_the_module_and_those_that_it_imports_from_its_folder(
    tmp_path: Path,
) -> None:
    bundle = collect_bundle("own_net:Net", [str(tmp_path / "empty"), str(write(tmp_path))])
    expected = ["own_layers.py", "own_net.py", "own_parts/__init__.py", "own_parts/deep.py"]
    assert names(bundle) == expected


def test_the_same_files_give_the_same_bytes(tmp_path: Path) -> None:
    folders = [write(tmp_path / name) for name in ("a", "b")]
    first, second = (collect_bundle("own_net:Net", [str(folder)]) for folder in folders)
    assert first is not None
    assert second is not None
    assert first.content == second.content
    assert first.file_name == f"bundle-{second.sha256}.zip"


@pytest.mark.parametrize("name", ["lenet", "numpy:array", "os:system", "own_missing:Net", "a:b:c"])
def test_what_is_not_beside_the_task_has_no_bundle(tmp_path: Path, name: str) -> None:
    assert collect_bundle(name, [str(write(tmp_path))]) is None


def test_a_module_of_a_package_without_init_brings_the_package(tmp_path: Path) -> None:
    write(tmp_path, {"own_space/nets/net.py": "", "own_space/more.py": ""})
    bundle = collect_bundle("own_space.nets.net:Net", [str(tmp_path)])
    assert names(bundle) == ["own_space/more.py", "own_space/nets/net.py"]


def test_a_source_that_is_too_large_is_refused_with_its_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(code_bundle, "MAX_BUNDLE_BYTES", 20)
    with pytest.raises(SettingError, match=r"too large for devices: 4 files of \d+ bytes"):
        collect_bundle("own_net:Net", [str(write(tmp_path))])
