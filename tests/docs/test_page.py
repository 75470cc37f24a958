import socket
from pathlib import Path

import pytest

from tests.docs.page import run_page

WORKING_PAGE = """
```python
# port.py
import socket
with socket.create_server(("127.0.0.1", 0)) as server:
    print("port", server.getsockname()[1])
    server.accept()
```
```python
# quiet/serve.py
import pathlib, socket
server = socket.create_server(("127.0.0.1", 0))
pathlib.Path("port").write_text(str(server.getsockname()[1]))
server.accept()
```
```toml
# named.toml
[named]
```
```toml
[unnamed]
```
```console
$ cat named.toml
# named.toml
[named]
$ python port.py &
port ...
$ python quiet/serve.py &
$ echo one; echo two
one
two
```
```python
first = 1
```
```python
assert first == 1
```
"""


def test_files_commands_and_blocks_of_a_page_work_together(tmp_path: Path) -> None:
    run_page(WORKING_PAGE, tmp_path)


def test_processes_started_by_a_page_end_with_it(tmp_path: Path) -> None:
    run_page(WORKING_PAGE, tmp_path)
    port = int((tmp_path / "port").read_text())
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))


@pytest.mark.parametrize(
    ("block", "complaint"),
    [
        ("```console\n$ echo one\ntwo\n```\n", "one"),
        ("```python\nassert 1 == 2, 'unequal'\n```\n", "unequal"),
        ("```console\n$ true &\n```\n", "ended at once"),
        ("```console\n$ echo one &\ntwo\n```\n", "ended at once"),
    ],
    ids=["other output", "failing block", "no server", "other first line"],
)
def test_an_example_with_another_output_fails(tmp_path: Path, block: str, complaint: str) -> None:
    with pytest.raises((AssertionError, pytest.fail.Exception), match=complaint):
        run_page(block, tmp_path)
