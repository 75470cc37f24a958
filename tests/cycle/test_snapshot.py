import pytest

from melisma.cycle.machine import CycleMachine
from melisma.cycle.snapshot import decode_state, encode_state
from melisma.errors import DataError
from melisma.runs.trace import Step, encode_step
from tests.cycle.recorded_runs import KINDS, recorded_runs


@pytest.mark.parametrize("kind", KINDS)
def test_a_decoded_state_goes_on_with_the_same_commands_at_every_step(kind: str) -> None:
    for steps in recorded_runs(kind):
        machine = CycleMachine()
        for step in steps:
            issued = machine.handle(step.event)
            assert encode_step(Step(step.event, issued)) == encode_step(step)
            content = encode_state(machine.state)
            machine = CycleMachine(decode_state(content))
            assert encode_state(machine.state) == content


def test_columns_of_a_decoded_state_can_be_written() -> None:
    steps = next(recorded_runs("default rules"))
    machine = CycleMachine()
    for step in steps:
        machine.handle(step.event)
        state = decode_state(encode_state(machine.state))
        state.learners.present[:] = True
        state.learners.costs[:] = 1.0


@pytest.mark.parametrize("cut", [0, 1, 50])
def test_a_snapshot_that_is_cut_off_is_refused(cut: int) -> None:
    machine = CycleMachine()
    machine.handle(next(recorded_runs("federated"))[0].event)
    content = encode_state(machine.state)
    with pytest.raises(DataError, match="the snapshot cannot be read"):
        decode_state(content[:cut])
