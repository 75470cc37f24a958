import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from melisma.errors import DataError, SettingError
from melisma.learning.compression import BLOCK_NUMBERS, Compression, Vector, compression_for

NAMES = ["none", "q8", "q4", "topk:0.01", "topk:0.3", "topk:1"]
STEPS = {"q8": 127, "q4": 7}
# Sizes about the edges of blocks, and odd ones.
SIZES = st.sampled_from(
    [0, 1, 2, 3, 7, BLOCK_NUMBERS - 1, BLOCK_NUMBERS, BLOCK_NUMBERS + 1, 3 * BLOCK_NUMBERS + 5]
)
NUMBERS = st.floats(width=32, allow_nan=False, allow_infinity=False)
VECTORS = hnp.arrays(np.float32, SIZES, elements=NUMBERS)


def normal_vector(size: int) -> Vector:
    return np.random.default_rng(size).normal(size=size).astype(np.float32)


@pytest.fixture(params=NAMES)
def compression(request: pytest.FixtureRequest) -> Compression:
    return compression_for(request.param)


@pytest.mark.parametrize("name", NAMES)
@given(vector=VECTORS)
def test_an_unpacked_vector_has_the_same_size_and_is_finite(name: str, vector: Vector) -> None:
    compression = compression_for(name)
    before = vector.copy()
    result = compression.unpack(compression.pack(vector), vector.size)
    assert result.dtype == np.float32
    assert result.shape == vector.shape
    assert np.isfinite(result).all()
    assert vector.tobytes() == before.tobytes()
    if compression.exact:
        assert result.tobytes() == vector.tobytes()


@pytest.mark.parametrize("name", STEPS)
@given(vector=VECTORS)
def test_the_rounding_error_is_at_most_half_a_step(name: str, vector: Vector) -> None:
    compression = compression_for(name)
    result = compression.unpack(compression.pack(vector), vector.size)
    for start in range(0, vector.size, BLOCK_NUMBERS):
        block = vector[start : start + BLOCK_NUMBERS].astype(np.float64)
        step = max(np.abs(block).max() / STEPS[name], np.finfo(np.float32).tiny)
        off = np.abs(result[start : start + BLOCK_NUMBERS] - block).max()
        # The scale and the product are rounded too; a block below the least scale is 0.
        assert off <= step * 0.50001 or not result[start : start + BLOCK_NUMBERS].any()
        assert off <= step * STEPS[name]


@pytest.mark.parametrize("name", STEPS)
def test_rounding_twice_equals_rounding_once(name: str) -> None:
    compression = compression_for(name)
    once = compression.unpack(compression.pack(normal_vector(1000)), 1000)
    twice = compression.unpack(compression.pack(once), 1000)
    np.testing.assert_allclose(twice, once, rtol=1e-6)


@pytest.mark.parametrize("name", STEPS)
def test_integers_within_the_steps_are_exact(name: str) -> None:
    steps = STEPS[name]
    vector = np.arange(-steps, steps + 1, dtype=np.float32)
    compression = compression_for(name)
    assert np.array_equal(compression.unpack(compression.pack(vector), vector.size), vector)


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("units", [1, 10, 190, 1000])
def test_numbers_too_small_for_a_scale_are_0(name: str, units: int) -> None:
    vector = np.full(300, units * np.finfo(np.float32).smallest_subnormal, np.float32)
    compression = compression_for(name)
    assert vector.any()
    assert not compression.unpack(compression.pack(vector), 300).any()


@given(vector=VECTORS, part=st.floats(0.001, 1))
def test_the_largest_numbers_are_kept_and_the_others_are_0(vector: Vector, part: float) -> None:
    compression = compression_for(f"topk:{part}")
    result = compression.unpack(compression.pack(vector), vector.size)
    count = min(vector.size, max(1, round(part * vector.size)))
    kept = result != 0
    assert np.array_equal(result[kept], vector[kept])
    expected = np.sort(np.abs(vector))[::-1][:count]
    assert np.array_equal(np.sort(np.abs(result[kept]))[::-1], expected[expected > 0])


def test_of_equal_magnitudes_the_first_are_kept() -> None:
    compression = compression_for("topk:0.5")
    vector = np.array([1, -1, 2, 1, -1, 1], np.float32)
    result = compression.unpack(compression.pack(vector), 6)
    assert result.tolist() == [1, -1, 2, 0, 0, 0]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("none", 4 * 1001),
        ("q8", 4 * 4 + 1001),
        ("q4", 4 * 4 + 501),
        ("topk:0.01", 8 * 10),
        ("topk:0.00001", 8),
        ("topk:1", 8 * 1001),
    ],
)
def test_the_packed_size_is_as_documented(name: str, expected: int) -> None:
    assert len(compression_for(name).pack(normal_vector(1001))) == expected


def test_an_empty_vector_is_packed_to_no_bytes(compression: Compression) -> None:
    content = compression.pack(np.empty(0, np.float32))
    assert content == b""
    assert compression.unpack(content, 0).size == 0


def test_the_name_of_a_compression_selects_it(compression: Compression) -> None:
    assert compression_for(compression.name) == compression


def test_only_compressions_without_loss_are_exact() -> None:
    assert [compression_for(name).exact for name in NAMES] == [True, *[False] * 4, True]


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_packing_refuses_numbers_that_are_not_finite(
    compression: Compression, wrong: float
) -> None:
    vector = normal_vector(300)
    vector[270] = wrong
    with pytest.raises(DataError, match=rf"number 270 is {wrong}; expected finite numbers"):
        compression.pack(vector)


def test_bytes_of_another_length_are_refused(compression: Compression) -> None:
    content = compression.pack(normal_vector(600))
    for wrong in (content[:-1], content + b"\0", b"", content * 2):
        with pytest.raises(DataError, match=rf"^{len(wrong)} bytes; expected {len(content)} for"):
            compression.unpack(wrong, 600)
    with pytest.raises(DataError, match="expected 0 for 0 numbers"):
        compression.unpack(b"\0", 0)


@given(content=st.binary(max_size=40), size=st.integers(0, 12), name=st.sampled_from(NAMES))
def test_any_bytes_are_unpacked_to_finite_numbers_or_refused(
    content: bytes, size: int, name: str
) -> None:
    try:
        result = compression_for(name).unpack(content, size)
    except DataError:
        return
    assert result.shape == (size,)
    assert np.isfinite(result).all()


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_unpacking_refuses_numbers_that_are_not_finite(wrong: float) -> None:
    content = np.array([1, wrong, 2], "<f4").tobytes()
    with pytest.raises(DataError, match=r"number 1 is .*; expected finite numbers"):
        compression_for("none").unpack(content, 3)
    indices = np.arange(3, dtype="<u4").tobytes()
    with pytest.raises(DataError, match=r"number 1 is .*; expected finite numbers"):
        compression_for("topk:1").unpack(indices + content, 3)


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("wrong", [np.nan, np.inf, -1.0, 3e38])
def test_invalid_scales_are_refused(name: str, wrong: float) -> None:
    content = compression_for(name).pack(normal_vector(10))
    with pytest.raises(DataError, match="a scale is out of range; expected scales from 0 to"):
        compression_for(name).unpack(np.float32(wrong).tobytes() + content[4:], 10)


@pytest.mark.parametrize(("name", "wrong"), [("q8", 0x80), ("q4", 0x08), ("q4", 0x80)])
def test_a_number_beyond_the_steps_is_refused(name: str, wrong: int) -> None:
    content = bytearray(compression_for(name).pack(normal_vector(10)))
    content[-1] = wrong
    with pytest.raises(DataError, match=r"a code is -\d+; expected at least -\d+"):
        compression_for(name).unpack(bytes(content), 10)


@pytest.mark.parametrize(
    ("indices", "message"),
    [
        ([0, 2, 4], "index 4 is out of range; expected below 4"),
        ([0, 1, 2**32 - 1], "index 4294967295 is out of range"),
        ([0, 2, 2], "indices are not strictly ascending; expected each index once"),
        ([2, 1, 3], "indices are not strictly ascending"),
    ],
)
def test_invalid_indices_are_refused(indices: list[int], message: str) -> None:
    content = np.array(indices, "<u4").tobytes() + np.ones(3, "<f4").tobytes()
    with pytest.raises(DataError, match=message):
        compression_for("topk:0.75").unpack(content, 4)


INVALID_PARTS = ["topk", "topk:", "topk:0", "topk:1.1", "topk:-1", "topk:nan"]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("", "expected one of none, q8, q4, or topk:"),
        ("q16", "expected one of none, q8, q4, or topk:"),
        ("Q8", r"did you mean q8\?"),
        ("non", r"did you mean none\?"),
        ("q8:1", r"did you mean q8\?"),
        *[(name, "expected topk: with a fraction above 0") for name in INVALID_PARTS],
    ],
)
def test_the_error_about_an_unknown_compression_names_the_known_ones(
    name: str, expected: str
) -> None:
    with pytest.raises(SettingError, match=f"compression is '{name}'; {expected}"):
        compression_for(name)


def test_a_vector_with_gaps_in_memory_is_packed(compression: Compression) -> None:
    wide = normal_vector(1000)
    assert compression.pack(wide[::2]) == compression.pack(wide[::2].copy())
