"""Dataclasses and structs are constructed only by receivers that list them."""

import dataclasses
from dataclasses import InitVar, dataclass, field
from typing import Annotated, Any, Generic, Optional, TypeVar

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from melisma.axon.codec.encoding import decode, encode
from melisma.axon.codec.records import construct, record_fields, record_types, type_hints
from melisma.errors import MalformedError, SettingError
from tests.axon.values import Job, Key, Place, Sample, plain, received, round_trip, same

T = TypeVar("T")


@dataclass
class Box(Generic[T]):
    content: T


@dataclass
class Tree:
    """Names itself, and what it holds."""

    leaves: "list[Tree]"
    fruit: "dict[str, Sample] | None" = None


class Envelope(msgspec.Struct, tag="env", rename="camel", kw_only=True):
    sent_by: str
    box: Box[Key] | None = None


@dataclass
class Range:
    low: float
    high: float

    def __post_init__(self) -> None:
        if self.low > self.high:
            raise RuntimeError("low is above high")


@dataclass(order=True, frozen=True)
class Odd:
    number: int
    double: int = field(init=False)
    hidden: list[int] = field(default_factory=list, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "double", 2 * self.number)


TYPES = record_types([Box, Tree, Envelope, Range, Odd])


@given(st.builds(Place, plain, plain) | st.builds(Sample, st.integers(), plain))
def test_a_record_arrives_as_it_was_sent(record: object) -> None:
    assert same(record, round_trip(record))


def test_fields_that_the_constructor_does_not_take_arrive_too() -> None:
    job = Job(name="fit")
    job.state = {"epoch": 3}
    assert round_trip(job).state == {"epoch": 3}
    odd = Odd(4)
    object.__setattr__(odd, "double", 9)
    assert decode(encode(odd), TYPES).double == 9


def test_renamed_and_tagged_structs_arrive() -> None:
    envelope = Envelope(sent_by="me", box=Box(Key(1)))
    assert same(envelope, decode(encode(envelope), TYPES))


def test_fields_that_were_not_sent_take_their_defaults() -> None:
    assert received(8, ["Place", {"north": 1.0}]) == Place(1.0, 0.0)
    assert received(8, ["Sample", {"label": 1}]) == Sample(1)


@pytest.mark.parametrize("name", ["Stranger", "object", "os.system", "", None, 5, 0.5, b"Place"])
def test_an_unknown_record_is_refused_with_advice(name: object) -> None:
    with pytest.raises(
        MalformedError, match=r"not a known type: name it in the annotations .* types="
    ):
        received(8, [name, {}])


@pytest.mark.parametrize(
    ("name", "fields", "reason"),
    [
        ("Place", {}, "north"),
        ("Place", {"north": 1, "west": 2}, "west"),
        ("Place", {"east": 2}, "north"),
        ("Place", {"north": 1, "__class__": 2}, "__class__"),
        ("Job", {"name": "x"}, "state"),
        ("Job", {"name": "x", "state": 1, "size": 2}, "size"),
        ("Sample", {}, "label"),
        ("Sample", {"label": 1, "size": 2}, "size"),
        ("Place", [], "Place"),
        ("Place", None, "Place"),
        ("Job", 7, "int"),
        ("Place", {1: 2}, "keywords"),
    ],
)
def test_invalid_fields_are_malformed_and_named(name: str, fields: object, reason: str) -> None:
    with pytest.raises(MalformedError, match=f"{name} cannot be constructed .*{reason}"):
        received(8, [name, fields])


@pytest.mark.parametrize("parts", [[], ["Place"], ["Place", {}, 1], 5, None, [["Place"], {}]])
def test_a_record_with_invalid_parts_is_malformed(parts: object) -> None:
    with pytest.raises(MalformedError):
        received(8, parts)


def test_an_exception_of_a_constructor_is_malformed_and_reported() -> None:
    with pytest.raises(MalformedError, match=r"Range cannot be constructed .*low is above high"):
        construct(["Range", {"low": 2, "high": 1}], TYPES)


def test_a_dataclass_with_init_variables_cannot_be_reconstructed() -> None:
    @dataclass
    class Scaled:
        value: float
        scale: InitVar[float]

    (name,) = types = record_types([Scaled])
    with pytest.raises(MalformedError, match="scale"):
        decode(encode(Scaled(1.0, 2.0)), types)
    assert name == Scaled.__qualname__


def test_other_values_have_no_record_fields() -> None:
    for value in (None, 1, {}, Place, Sample, object()):
        assert record_fields(value) is None
    assert record_fields(Place(1.0)) == dataclasses.asdict(Place(1.0))


@pytest.mark.parametrize(
    ("hint", "names"),
    [
        (int, set()),
        (list[int], set()),
        (Any, set()),
        (Place, {"Place"}),
        (list[Place], {"Place"}),
        (dict[str, tuple[Place, ...]], {"Place"}),
        (Place | None, {"Place"}),
        (Optional[Place], {"Place"}),  # noqa: UP045 - both are written
        (Annotated[Place, "metres"], {"Place"}),
        (Sample, {"Sample", "Place"}),
        (Job, {"Job", "Place"}),
        (Tree, {"Tree", "Sample", "Place"}),
        (Box[Key], {"Box", "Key"}),
        (Envelope, {"Envelope", "Box", "Key"}),
    ],
    ids=lambda part: "-".join(sorted(part)) if isinstance(part, set) else str(part),
)
def test_an_annotation_names_every_record_inside_it(hint: Any, names: set[str]) -> None:
    assert set(record_types([hint])) == names


def test_annotations_that_cannot_be_resolved_name_nothing() -> None:
    def prose(count: "how many samples") -> None:  # type: ignore[valid-type]  # noqa: F722
        pass

    def missing(place: "Nowhere") -> None:  # type: ignore[name-defined]  # noqa: F821
        pass

    assert type_hints(prose) == type_hints(missing) == type_hints(len) == {}


def test_two_records_of_one_name_are_refused() -> None:
    one = dataclasses.make_dataclass("Twin", ["x"])
    two = dataclasses.make_dataclass("Twin", ["y"])
    with pytest.raises(SettingError, match="two records are called Twin"):
        record_types([one, list[two]])  # type: ignore[valid-type]
