import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from melisma.errors import DataError, SettingError
from melisma.learning.data.datasets import PLAIN_DTYPES, Split
from melisma.learning.data.shards import (
    HEADER_LENGTH,
    ShardCache,
    ShardFolder,
    concatenate,
    decode_shard,
    encode_shard,
)

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


def add_to_cache(
    cache: ShardCache, folder: ShardFolder, sha256: str, *, needed: tuple[str, ...] = ()
) -> int:
    """Fetch what is missing in pieces; how many bytes that were."""
    content = read_stored(folder, sha256)
    cache.make_room(sha256, len(content), needed)
    content = content[cache.partial_bytes(sha256) :]
    for start in range(0, len(content), PIECE):
        cache.append(sha256, content[start : start + PIECE])
    cache.finish(sha256)
    return len(content)


def read_stored(folder: ShardFolder, sha256: str) -> bytes:
    path = folder.path(sha256)
    assert path is not None
    return path.read_bytes()


def test_all_shards_together_equal_the_data(folder: ShardFolder) -> None:
    assert [shard.samples for shard in folder.shards] == [20, 20, 10]
    result = concatenate([decode_shard(read_stored(folder, s.sha256)) for s in folder.shards])
    np.testing.assert_array_equal(result.samples, split().samples)
    np.testing.assert_array_equal(result.labels, split().labels)
    sizes = [len(read_stored(folder, shard.sha256)) for shard in folder.shards]
    assert sizes == [shard.size_bytes for shard in folder.shards]


def test_an_unknown_hash_has_no_path(folder: ShardFolder) -> None:
    assert folder.path("0" * 64) is None
    assert folder.path("../secret") is None


def test_equal_shards_share_one_file(tmp_path: Path) -> None:
    again = ShardFolder(tmp_path, split(), [np.arange(5), np.arange(5), np.arange(5, 9)])
    assert again.shards[0].sha256 == again.shards[1].sha256
    assert len(list(tmp_path.iterdir())) == 2


def test_a_file_that_an_earlier_process_left_incomplete_is_written_again(tmp_path: Path) -> None:
    (shard,) = ShardFolder(tmp_path, split(), [np.arange(9)]).shards
    content = (tmp_path / shard.sha256).read_bytes()
    for left in (b"", bytes(len(content)), content[:-1]):
        (tmp_path / shard.sha256).write_bytes(left)
        assert ShardFolder(tmp_path, split(), [np.arange(9)]).shards == [shard]
        assert (tmp_path / shard.sha256).read_bytes() == content


def test_a_cached_shard_that_a_power_cut_damaged_is_fetched_again(
    tmp_path: Path, folder: ShardFolder
) -> None:
    sha256, size = folder.shards[0].sha256, folder.shards[0].size_bytes
    add_to_cache(ShardCache(tmp_path / "cache", 10**6), folder, sha256)
    (tmp_path / "cache" / sha256).write_bytes(bytes(size))
    cache = ShardCache(tmp_path / "cache", 10**6)
    assert sha256 not in cache
    assert add_to_cache(cache, folder, sha256) == size
    assert sha256 in cache


def test_an_interrupted_download_resumes_where_it_ended(
    tmp_path: Path, folder: ShardFolder
) -> None:
    sha256, size = folder.shards[0].sha256, folder.shards[0].size_bytes
    ShardCache(tmp_path / "cache", 10**6).append(sha256, read_stored(folder, sha256)[:130])
    cache = ShardCache(tmp_path / "cache", 10**6)
    assert cache.hashes() == set()
    assert add_to_cache(cache, folder, sha256) == size - 130
    assert cache.hashes() == {sha256}
    np.testing.assert_array_equal(cache.read(sha256, size).labels, split().labels[:20])


def test_content_with_another_hash_is_not_stored(tmp_path: Path) -> None:
    cache = ShardCache(tmp_path, 10**6)
    cache.append("0" * 64, b"something else")
    with pytest.raises(DataError, match="received a shard with SHA-256"):
        cache.finish("0" * 64)
    assert cache.hashes() == set()
    assert cache.partial_bytes("0" * 64) == 0


def test_the_least_recently_used_shard_is_deleted_unless_it_is_needed(
    tmp_path: Path, folder: ShardFolder
) -> None:
    one, two, three = (shard.sha256 for shard in folder.shards)
    cache = ShardCache(tmp_path / "cache", folder.shards[0].size_bytes * 2)
    for age, sha256 in enumerate((one, two)):
        add_to_cache(cache, folder, sha256)
        os.utime(tmp_path / "cache" / sha256, (age, age))
    cache.read(one, folder.shards[0].size_bytes)
    add_to_cache(cache, folder, three)
    assert cache.hashes() == {one, three}
    add_to_cache(cache, folder, two, needed=(one,))
    assert cache.hashes() == {one, two}


def stored_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())


def test_parts_of_shards_count_and_the_oldest_are_deleted_first(
    tmp_path: Path, folder: ShardFolder
) -> None:
    one, two, three = (shard.sha256 for shard in folder.shards)
    size, stored = folder.shards[0].size_bytes, tmp_path / "cache"
    cache = ShardCache(stored, size + 100)
    for age, sha256 in enumerate((one, two)):
        cache.make_room(sha256, size)
        cache.append(sha256, read_stored(folder, sha256)[:60])
        os.utime(stored / f"{sha256}.part", (age, age))
    (stored / "notes.txt").write_text("of the owner")
    add_to_cache(cache, folder, three)
    assert stored_bytes(stored) <= size + 100 + len("of the owner")
    assert cache.hashes() == {three}
    add_to_cache(cache, folder, one)
    assert (stored / "notes.txt").exists()
    assert sorted(path.name for path in stored.iterdir()) == sorted(["notes.txt", one])


def test_a_shard_for_which_needed_ones_leave_no_room_is_refused(
    tmp_path: Path, folder: ShardFolder
) -> None:
    one, two, _ = (shard.sha256 for shard in folder.shards)
    size = folder.shards[0].size_bytes
    cache = ShardCache(tmp_path / "cache", 2 * size - 1)
    add_to_cache(cache, folder, one)
    with pytest.raises(SettingError, match=r"does not fit in the cache of \d+ bytes beside"):
        cache.make_room(two, size, needed=(one,))
    with pytest.raises(SettingError, match="--cache-bytes"):
        cache.make_room(two, 2 * size)
    assert cache.hashes() == {one}


def test_a_part_that_exceeds_its_shard_is_fetched_from_the_beginning(
    tmp_path: Path, folder: ShardFolder
) -> None:
    shard = folder.shards[0]
    cache = ShardCache(tmp_path / "cache", 10**6)
    cache.append(shard.sha256, bytes(shard.size_bytes + 1))
    assert add_to_cache(cache, folder, shard.sha256) == shard.size_bytes


def test_a_stored_shard_of_another_size_is_not_read(tmp_path: Path, folder: ShardFolder) -> None:
    shard = folder.shards[0]
    cache = ShardCache(tmp_path / "cache", 10**6)
    add_to_cache(cache, folder, shard.sha256)
    with pytest.raises(DataError, match=f"has {shard.size_bytes} bytes; the orchestrator says 0"):
        cache.read(shard.sha256, 0)


@pytest.mark.parametrize("cut", [0, 3, 10, -1])
def test_a_truncated_shard_is_refused(cut: int) -> None:
    with pytest.raises(DataError, match=r"shard"):
        decode_shard(encode_shard(split())[:cut])


def test_a_shard_with_less_content_than_its_header_states_is_refused() -> None:
    content = encode_shard(split(3)).replace(b"[3,[4,3],", b"[9,[4,3],")
    with pytest.raises(DataError, match="does not match its header"):
        decode_shard(content)


@pytest.mark.parametrize("labels", PLAIN_DTYPES)
@pytest.mark.parametrize("samples", PLAIN_DTYPES)
def test_every_dtype_survives_a_round_trip(samples: str, labels: str) -> None:
    given = Split(
        np.arange(24).reshape(4, 3, 2).astype(samples), np.arange(8).reshape(4, 2).astype(labels)
    )
    result = decode_shard(encode_shard(given))
    for before, after in ((given.samples, result.samples), (given.labels, result.labels)):
        assert after.dtype == before.dtype
        np.testing.assert_array_equal(after, before)


def test_the_byte_order_of_samples_does_not_change_the_shard() -> None:
    big = Split(np.arange(6, dtype=">f8").reshape(3, 2), np.arange(3, dtype=">i4"))
    little = Split(big.samples.astype("<f8"), big.labels.astype("<i4"))
    assert encode_shard(big) == encode_shard(little)


def shard(head: str, body: bytes = b"") -> bytes:
    return HEADER_LENGTH.pack(len(head)) + head.encode() + body


@pytest.mark.parametrize(
    "content",
    [
        shard('[1,[1],"|O",[],"|u1"]', bytes(9)),
        shard('[1,[1],"<f8,<f8",[],"|u1"]', bytes(17)),
        shard('[1,[1],"|V1",[],"|u1"]', bytes(2)),
        shard('[1,[1],">f8",[],"|u1"]', bytes(9)),
        shard('[1,[1],"|u1",[],"|S1"]', bytes(2)),
        shard('[-1,[1],"|u1",[],"|u1"]'),
        shard('[1,[-1],"|u1",[],"|u1"]'),
        shard('[1,[-1,-1],"|u1",[],"|u1"]', bytes(2)),
        shard('[4611686018427387904,[0],"|u1",[0],"|u1"]'),
        shard('[1,[],"|b1",[],"|u1"]', b"\x02\x00"),
        shard(f'[1,[{"9" * 18},{"9" * 18}],"<f8",[],"|u1"]'),
        shard(f'[1,{[1] * 40},"|u1",[],"|u1"]', bytes(2)),
        shard(f'[1,[{"9" * 400}],"|u1",[],"|u1"]'),
        shard('[1,[1],"|u1"]', bytes(2)),
        shard("[1,[1]]", bytes(2)),
        shard("{}"),
        HEADER_LENGTH.pack(2**32 - 1) + bytes(100),
    ],
)
def test_an_invalid_header_is_refused(content: bytes) -> None:
    with pytest.raises(DataError, match="shard"):
        decode_shard(content)


@given(data=st.data())
def test_changed_bytes_change_numbers_or_are_refused(
    data: st.DataObject,
) -> None:
    content = bytearray(encode_shard(split(3)))
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, 60))] = data.draw(st.integers(0, 255))
    try:
        result = decode_shard(bytes(content))
    except DataError:
        return
    assert result.samples.nbytes + result.labels.nbytes < len(content)
