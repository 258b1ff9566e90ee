from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordlet.model.quantity import format_bytes, format_mcpu, parse_mcpu, parse_quantity, parse_units


@pytest.mark.parametrize(
    ("mcpu", "text"), [(1234, "1234m"), (2000, "2"), (0, "0"), (12_000, "12"), (1_000_000, "1k"), (-1500, "-1500m")]
)
def test_cpu_text(mcpu: int, text: str) -> None:  # V-01
    assert format_mcpu(mcpu) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(1073741824, "1Gi"), (1536, "1536"), (2048, "2Ki"), (1000, "1k"), (0, "0"), (26148864000, "25536000Ki"),
     (2**70, "1024Ei"), (4617089844, "4617089844")],
)  # fmt: skip
def test_memory_text(value: int, text: str) -> None:  # V-02
    assert format_bytes(value) == text


def test_suffix_and_plain_are_the_same_number() -> None:  # V-03
    assert parse_units("15k") == parse_units("15000") == 15_000


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("500m", "0.5"), ("2", "2"), ("4Gi", 4 * 2**30), ("1e3", 1000), ("1E3", 1000), ("1E", 10**18), ("1Ei", 2**60),
        ("-1", -1), ("+.5", "0.5"), ("5.", 5), ("1n", "1e-9"), ("1u", "1e-6"), ("1.5Ki", 1536), ("20666666665999m",
        "20666666665.999"),
    ],
)  # fmt: skip
def test_parsed_exactly(text: str, value: int | str) -> None:
    assert parse_quantity(text) == Decimal(value)


@pytest.mark.parametrize("text", ["", " 1", "1 ", "1_0", "٣", "1kb", "1KI", "NaN", "Inf", "0x10", "1e", ".", "1e1e1",
                                  "--1", "1" * 65, "1\n"])  # fmt: skip
def test_refused(text: str) -> None:
    with pytest.raises(ValueError, match="resource quantity"):
        parse_quantity(text)


@pytest.mark.parametrize(("text", "mcpu"), [("1", 1000), ("0.0001", 1), ("1.0005", 1001), ("100m", 100)])
def test_cpu_rounds_up(text: str, mcpu: int) -> None:
    assert parse_mcpu(text) == mcpu


@pytest.mark.parametrize(("text", "value"), [("1m", 1), ("1.5", 2), ("20666666665999m", 20_666_666_666)])
def test_units_round_up(text: str, value: int) -> None:
    assert parse_units(text) == value


@given(st.integers(-(2**63), 2**63))
def test_formats_read_back(value: int) -> None:
    assert parse_mcpu(format_mcpu(value)) == value
    assert parse_units(format_bytes(value)) == value
