"""Torch tensors of every dtype and layout arrive as views of their frames."""

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from msgspec.msgpack import Ext

from melisma.axon.codec.encoding import decode, encode
from melisma.axon.codec.message import message_buffers, parse_message
from melisma.errors import EncodingError, MalformedError
from tests.axon.values import (
    PLAIN_TENSOR_DTYPES,
    TENSOR_LAYOUTS,
    filled_tensor,
    pack,
    received,
    round_trip,
    same,
    tensor_bytes,
    tensors,
    wire_bytes,
)
from tests.lanes import cases

COMPRESSED = {
    "sparse_csr": ([0, 1, 1, 3], [1, 0, 3], (3, 4), (3,)),
    "sparse_csc": ([0, 1, 1, 3], [1, 0, 3], (4, 3), (3,)),
    "sparse_bsr": ([0, 1, 3], [1, 0, 1], (4, 6), (3, 2, 3)),
    "sparse_bsc": ([0, 1, 3], [1, 0, 1], (4, 6), (3, 2, 3)),
}


@pytest.mark.parametrize("dtype", PLAIN_TENSOR_DTYPES, ids=str)
def test_every_dtype_arrives_in_every_layout(dtype: torch.dtype) -> None:
    for layout in TENSOR_LAYOUTS.values():
        for shape in [(), (1,), (5,), (0,), (3, 4), (2, 0, 3), (2, 3, 4)]:
            tensor = layout(filled_tensor(dtype, shape))
            assert same(tensor, round_trip(tensor))


@settings(max_examples=cases(200))
@given(tensors)
def test_a_tensor_arrives_with_its_dtype_shape_and_bits(tensor: torch.Tensor) -> None:
    arrived = round_trip(tensor)
    assert same(tensor, arrived)
    assert arrived.is_contiguous()


@pytest.mark.parametrize("dtype", PLAIN_TENSOR_DTYPES, ids=str)
@pytest.mark.parametrize("layout", COMPRESSED)
def test_every_dtype_arrives_in_every_compressed_layout(dtype: torch.dtype, layout: str) -> None:
    compressed, plain, shape, values_shape = COMPRESSED[layout]
    tensor = torch.sparse_compressed_tensor(
        compressed,
        plain,
        filled_tensor(dtype, values_shape),
        shape,
        layout=getattr(torch, layout),
        check_invariants=True,
    )
    assert same(tensor, round_trip(tensor))


def coo(indices: torch.Tensor, values: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    return torch.sparse_coo_tensor(indices, values, shape, check_invariants=True)


@pytest.mark.parametrize("dtype", PLAIN_TENSOR_DTYPES, ids=str)
@pytest.mark.parametrize("indices", [[[0, 2]], [[2, 0]], [[2, 2]]], ids=str)
def test_every_dtype_arrives_sparse_and_coalesced_only_if_it_was(
    dtype: torch.dtype, indices: list[list[int]]
) -> None:
    tensor = coo(torch.tensor(indices), filled_tensor(dtype, (2,)), (4,))
    assert same(tensor, round_trip(tensor))


SPARSE = coo(torch.tensor([[0, 2], [1, 0]]), torch.tensor([1.0, 2.0]), (3, 2)).coalesce()


@pytest.mark.parametrize(
    "tensor",
    [
        SPARSE,
        coo(torch.empty(2, 0, dtype=torch.int64), torch.empty(0), (3, 4)),
        coo(torch.empty(0, 1, dtype=torch.int64), torch.ones(1), ()),
        coo(torch.tensor([[0, 2]]), torch.ones(2, 3), (4, 3)),
        torch.eye(3).to_sparse(),
        (torch.eye(3) + 1j).to_sparse().conj(),
        torch.ones(2, 3, 4).to_sparse_csr(),
        torch.eye(3).to_sparse_csr().to(torch.complex64).conj(),
        torch.zeros(0, 3).to_sparse_csr(),
        torch.sparse_csr_tensor(
            torch.tensor([0, 1], dtype=torch.int32),
            torch.tensor([0], dtype=torch.int32),
            torch.ones(1),
            (1, 1),
            check_invariants=True,
        ),
    ],
    ids=str,
)
def test_sparse_tensors_of_every_form_arrive(tensor: torch.Tensor) -> None:
    assert same(tensor, round_trip(tensor))


def test_conjugates_and_negatives_arrive_resolved() -> None:
    tensor = torch.tensor([[1 + 2j, 3 - 4j]])
    for lazy in (tensor.conj(), tensor.mH, tensor.conj().imag, tensor.conj()[0, 0].imag):
        assert lazy.is_conj() or lazy.is_neg()
        arrived = round_trip(lazy)
        assert torch.equal(arrived, lazy)
        assert not arrived.is_conj()
        assert not arrived.is_neg()


def test_parameters_and_tensors_of_a_graph_arrive_as_their_values() -> None:
    parameter = torch.nn.Parameter(torch.arange(3.0))
    for tensor in (parameter, parameter * 2, SPARSE.clone().requires_grad_()):
        arrived = round_trip(tensor)
        assert type(arrived) is torch.Tensor
        assert not arrived.requires_grad
        assert same(tensor.detach(), arrived)


def test_a_state_dictionary_arrives() -> None:
    state = dict(torch.nn.BatchNorm1d(3).state_dict())
    assert same(state, round_trip(state))


def shares_memory(buffer: Any, tensor: torch.Tensor) -> bool:
    return np.shares_memory(np.frombuffer(buffer, np.uint8), tensor.view(torch.uint8).numpy())


def test_contiguous_memory_is_sent_and_received_uncopied() -> None:
    tensor = torch.ones(300, 200, dtype=torch.bfloat16)
    buffers = message_buffers(encode([tensor]))
    assert any(shares_memory(buffer, tensor) for buffer in buffers)
    data = bytearray(b"".join(buffers))
    (arrived,) = decode(parse_message(data))
    assert shares_memory(data, arrived)
    arrived[0, 0] = 7
    assert decode(parse_message(data))[0][0, 0] == 7


def test_memory_that_is_read_only_is_copied_and_never_written_to() -> None:
    data = bytes(wire_bytes(torch.zeros(3)))
    arrived = decode(parse_message(data))
    arrived += 1
    assert data == wire_bytes(torch.zeros(3))


class Tagged(torch.Tensor):
    pass


def quantized() -> torch.Tensor:
    return torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8)


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (quantized, "dequantize"),
        (lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]), "nested"),
        (lambda: torch.empty(3, device="meta"), "meta"),
        (lambda: torch.ones(3).as_subclass(Tagged), "Tagged.* is a subclass"),
        (torch.nn.UninitializedParameter, "is a subclass"),
        (lambda: torch.ones(2, 3).to_mkldnn(), "to_dense"),
    ],
)
def test_a_value_without_plain_memory_is_refused_with_advice(make: Any, reason: str) -> None:
    with pytest.raises(EncodingError, match=reason) as refused:
        encode({"weights": [make()]})
    assert str(refused.value).startswith("value['weights'][0] cannot be sent")


def test_without_torch_a_tensor_is_refused_with_advice() -> None:
    code = (
        "import sys\n"
        "from melisma.axon.codec.encoding import decode\n"
        "from melisma.axon.codec.message import parse_message\n"
        f"message = parse_message({bytes(wire_bytes([torch.ones(2)]))!r})\n"
        "try:\n    decode(message)\n"
        "except Exception as error:\n    print(type(error).__name__, error)\n"
        "assert 'torch' not in sys.modules\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30
    )
    assert run.stdout.startswith("MalformedError")
    assert "import torch before the call" in run.stdout


# Headers that lie.


def strided(dtype: str, shape: object, number: int) -> Ext:
    return Ext(11, pack(["strided", dtype, shape, number]))


@pytest.mark.parametrize(
    "shape", [[2], [], [-3], [-1, -3], [3.0], ["3"], [(1 << 64) - 1, 3], 3, None]
)
def test_a_shape_that_its_frame_does_not_fill_is_malformed(shape: object) -> None:
    with pytest.raises(MalformedError):
        received(11, ["strided", "float64", shape, 0], bytes(24))


@pytest.mark.parametrize(
    "name", ["float63", "", None, 5, "nn", "Tensor", "__name__", "strided", "qint8", "quint4x2", []]
)
def test_an_unknown_dtype_is_malformed(name: object) -> None:
    for shape, frame in (([3], bytes(3)), ([0], b"")):
        with pytest.raises(MalformedError, match="is not a dtype of torch"):
            received(11, ["strided", name, shape, 0], frame)


@pytest.mark.parametrize("layout", ["dense", "_mkldnn", "jagged", "", None, 3, []])
def test_an_unknown_layout_is_malformed(layout: object) -> None:
    with pytest.raises(MalformedError):
        received(11, [layout, "float32", [1], 0], bytes(4))


@pytest.mark.parametrize("parts", [[], ["strided"], ["strided", "int8", [4]], 5, None])
def test_a_tensor_with_invalid_parts_is_malformed(parts: object) -> None:
    with pytest.raises(MalformedError):
        received(11, parts, bytes(4))


def sparse_coo(indices: list[int], shape: list[int], coalesced: object = True) -> Any:
    half = len(indices) // 2
    return received(
        11,
        ["sparse_coo", "float32", shape, strided("int64", [2, half], 0),
         strided("float32", [half], 1), coalesced],
        np.array(indices).tobytes(), np.ones(half, "f4").tobytes(),
    )  # fmt: skip


def test_a_sparse_tensor_made_by_hand_arrives() -> None:
    assert sparse_coo([0, 2, 1, 0], [3, 2]).to_dense().sum() == 2


@pytest.mark.parametrize(
    ("indices", "shape", "coalesced"),
    [
        ([0, 3, 1, 0], [3, 2], False),
        ([0, -1, 1, 0], [3, 2], False),
        ([0, 1 << 62, 1, 0], [3, 2], False),
        ([2, 0, 0, 0], [3, 2], True),
        ([0, 0, 0, 0], [3, 2], True),
        ([0, 2, 1, 0], [3], False),
        ([0, 2, 1, 0], [3, 2, 2], False),
        ([0, 2, 1, 0], [-3, 2], False),
        ([0, 2, 1, 0], [1 << 62, 1 << 62], False),
        ([0, 2, 1, 0], [3, 2], "yes"),
        ([0, 2, 1, 0], [3, 2], [1]),
    ],
)
def test_indices_outside_of_the_tensor_are_malformed(
    indices: list[int], shape: list[int], coalesced: object
) -> None:
    with pytest.raises(MalformedError):
        sparse_coo(indices, shape, coalesced)


@pytest.mark.parametrize("layout", COMPRESSED)
@pytest.mark.parametrize(
    ("compressed", "plain"),
    [
        ([0, 1, 9], [1, 0]),
        ([0, 2, 1], [1, 0]),
        ([1, 1, 2], [1, 0]),
        ([0, 1, 2], [1, 9]),
        ([0, 1, 2], [-1, 0]),
        ([0, 1], [1, 0]),
        ([0, 1, 2, 2], [1, 0]),
        ([-(1 << 62), 1, 2], [0, 1]),
    ],
)
def test_compressed_indices_outside_of_the_tensor_are_malformed(
    layout: str, compressed: list[int], plain: list[int]
) -> None:
    blocks = [2, 1, 1] if layout.startswith("sparse_b") else [2]
    with pytest.raises(MalformedError):
        received(
            11,
            [layout, "float32", [2, 2], strided("int64", [len(compressed)], 0),
             strided("int64", [len(plain)], 1), strided("float32", blocks, 2)],
            np.array(compressed).tobytes(), np.array(plain).tobytes(), bytes(8),
        )  # fmt: skip


def test_the_bits_of_a_tensor_are_read_in_order() -> None:
    assert tensor_bytes(torch.tensor([[1, 2], [3, 4]], dtype=torch.uint8).T) == b"\1\3\2\4"
