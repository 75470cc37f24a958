"""Instructions survive encoding and decoding; other protocols are refused."""

import msgspec
import numpy as np
import pytest

from melisma.errors import RefusedError
from melisma.live import protocol


def test_instructions_survive_encoding() -> None:
    shard = protocol.ShardRef(3, "0" * 64, 100, 10)
    sent = [
        protocol.RunBenchmark(2.0),
        protocol.ComputeBound(1, 5.0, 2),
        protocol.Train(1, 1, "model-0.safetensors", 2, 4.5, (shard,)),
        protocol.StopTraining(1, 1),
        protocol.Leave(),
    ]
    assert (
        protocol.parse_instructions(
            msgspec.json.decode(msgspec.json.encode(protocol.to_builtins(sent)))
        )
        == sent
    )


@pytest.mark.parametrize("number", [None, "1", True, [1], np.array([1, 2]), protocol.PROTOCOL + 1])
def test_a_registration_with_another_protocol_is_refused(number: object) -> None:
    with pytest.raises(RefusedError, match="install the same version on both"):
        protocol.parse_registration({"session": "s" * 32, "protocol": number, "version": "0"})
