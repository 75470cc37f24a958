import os
from pathlib import Path

import numpy as np
import pytest

from melisma.errors import DataError
from melisma.learning.data import Split
from melisma.learning.shards import ShardCache, ShardFolder, decoded, encoded, together

PIECE = 100


def split(count: int = 50) -> Split:
    rng = np.random.default_rng(0)
    return Split(
        rng.integers(0, 256, (count, 4, 3)).astype(np.uint8),
        rng.integers(0, 10, count).astype(np.uint8),
    )


@pytest.fixture
def folder(tmp_path: Path) -> ShardFolder:
    parts = [np.arange(start, min(start + 20, 50)) for start in range(0, 50, 20)]
    return ShardFolder(tmp_path / "shards", split(), parts)


def bring(
    cache: ShardCache, folder: ShardFolder, sha256: str, *, needed: tuple[str, ...] = ()
) -> int:
    """Fetch what is missing in pieces; how many bytes that were."""
    content = folder.path(sha256).read_bytes()[cache.begun_bytes(sha256) :]
    for start in range(0, len(content), PIECE):
        cache.append(sha256, content[start : start + PIECE])
    cache.finish(sha256, needed)
    return len(content)


def test_shards_together_are_the_data(folder: ShardFolder) -> None:
    assert [shard.samples for shard in folder.shards] == [20, 20, 10]
    found = together([decoded(folder.path(s.sha256).read_bytes()) for s in folder.shards])
    np.testing.assert_array_equal(found.samples, split().samples)
    np.testing.assert_array_equal(found.labels, split().labels)
    sizes = [folder.path(shard.sha256).stat().st_size for shard in folder.shards]
    assert sizes == [shard.size_bytes for shard in folder.shards]


def test_the_same_content_is_one_file(tmp_path: Path) -> None:
    again = ShardFolder(tmp_path, split(), [np.arange(5), np.arange(5), np.arange(5, 9)])
    assert again.shards[0].sha256 == again.shards[1].sha256
    assert len(list(tmp_path.iterdir())) == 2


def test_what_arrives_in_parts_is_taken_up_where_it_ended(
    tmp_path: Path, folder: ShardFolder
) -> None:
    sha256, size = folder.shards[0].sha256, folder.shards[0].size_bytes
    ShardCache(tmp_path / "cache", 10**6).append(sha256, folder.path(sha256).read_bytes()[:130])
    cache = ShardCache(tmp_path / "cache", 10**6)
    assert cache.held() == set()
    assert bring(cache, folder, sha256) == size - 130
    assert cache.held() == {sha256}
    np.testing.assert_array_equal(cache.read(sha256).labels, split().labels[:20])


def test_what_has_another_hash_gets_no_name(tmp_path: Path) -> None:
    cache = ShardCache(tmp_path, 10**6)
    cache.append("0" * 64, b"something else")
    with pytest.raises(DataError, match="a shard arrived with SHA-256"):
        cache.finish("0" * 64)
    assert cache.held() == set()
    assert cache.begun_bytes("0" * 64) == 0


def test_what_was_used_longest_ago_makes_room_unless_it_is_needed(
    tmp_path: Path, folder: ShardFolder
) -> None:
    one, two, three = (shard.sha256 for shard in folder.shards)
    cache = ShardCache(tmp_path / "cache", folder.shards[0].size_bytes * 2)
    for age, sha256 in enumerate((one, two)):
        bring(cache, folder, sha256)
        os.utime(tmp_path / "cache" / sha256, (age, age))
    cache.read(one)
    bring(cache, folder, three)
    assert cache.held() == {one, three}
    small = ShardCache(tmp_path / "cache", 1)
    bring(small, folder, two, needed=(one,))
    assert small.held() == {one, two}


@pytest.mark.parametrize("cut", [0, 3, 10, -1])
def test_a_shard_that_is_cut_off_is_refused(cut: int) -> None:
    with pytest.raises(DataError, match=r"shard"):
        decoded(encoded(split())[:cut])


def test_a_shard_that_claims_more_than_it_has_is_refused() -> None:
    content = encoded(split(3)).replace(b"[3,[4,3]]", b"[9,[4,3]]")
    with pytest.raises(DataError, match="longer or shorter than it says"):
        decoded(content)
