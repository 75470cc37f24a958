"""Instructions survive encoding and decoding."""

import msgspec

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
