"""Sizes and durations read back what they write; errors keep their four parts."""

from __future__ import annotations

import doctest
import pickle
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinlog import errors, units
from twinlog.format import epoch_file, epoch_history, log_file, record
from twinlog.units import UnitError


@pytest.mark.parametrize("module", [errors, log_file, epoch_file, epoch_history, record, units])
def test_the_examples_in_the_text_are_true(module: ModuleType) -> None:
    """Doctests."""
    assert doctest.testmod(module).failed == 0


@pytest.mark.parametrize(
    ("text", "size"),
    [("0", 0), ("1 kb", 1000), ("2GB", 2_000_000_000), (" 3 TiB ", 3 << 40), ("0.5 KiB", 512)],
)
def test_sizes(text: str, size: int) -> None:
    """Binary and decimal units, any case, with or without a space."""
    assert units.parse_size(text) == size


@pytest.mark.parametrize(
    "text",
    ["", "MiB", "-1", "1 XB", "1.5", "0.3 KiB", "1 2", "\u0663", "1" * 5000, "1" * 400 + ".5"],
)
def test_what_is_no_size(text: str) -> None:
    """The hint shows one that is."""
    with pytest.raises(UnitError) as caught:
        units.parse_size(text)
    assert caught.value.hint


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("250 ms", 0.25), ("1h", 3600.0), ("2 d", 172800.0), ("1 min 1 us", 60.000001), ("0", 0.0)],
)
def test_durations(text: str, seconds: float) -> None:
    """One part or several."""
    assert units.parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "text", ["", "5", "-1 s", "1 week", "s", "1 s x", "\u0663 s", "1" * 400 + " h"]
)
def test_what_is_no_duration(text: str) -> None:
    """A number alone says nothing about its unit."""
    with pytest.raises(UnitError):
        units.parse_duration(text)


@pytest.mark.parametrize(
    ("text", "number"),
    [("0", 0), ("0" * 5000 + "12", 12), ("9223372036854775807", 2**63 - 1)]
    + [(odd, None) for odd in ("", " 1", "+1", "-1", "1.0", "\u0663", "\u00b2", "9" * 5000)]
    + [("9223372036854775808", None), ("1e3", None), ("1_000", None)],
)
def test_whole_numbers(text: str, number: int | None) -> None:
    """Digits and nothing else, however many: what Python's ``int`` takes or refuses besides."""
    assert units.parse_whole(text) == number


@given(st.integers(0, 1 << 50))
def test_written_sizes_are_read_back(size: int) -> None:
    """Up to the one decimal that is shown."""
    again = units.parse_size(_whole(units.format_size(size)))
    assert abs(again - size) <= max(size * 0.06, 0)


def _whole(text: str) -> str:
    number, unit = text.split(" ")
    small = {"TiB": "GiB", "GiB": "MiB", "MiB": "KiB", "KiB": "B"}.get(unit)
    return f"{int(float(number) * 1024)} {small}" if small else text


@given(st.floats(0, 1e6))
def test_written_durations_are_read_back(seconds: float) -> None:
    """Up to the unit that is shown last."""
    again = units.parse_duration(units.format_duration(seconds))
    assert again == pytest.approx(seconds, rel=0.06, abs=1e-6)


def test_odd_durations() -> None:
    """Negative ones, and whole units."""
    assert units.format_duration(-2) == "-2 s"
    assert units.format_duration(0) == "0 s"
    assert units.format_duration(60) == "1 m"
    assert units.format_duration(59.97) == "1 m"
    assert units.format_duration(7200) == "2 h"
    assert units.format_duration(90000) == "1 d 1 h"


def test_every_code_comes_back_as_its_class() -> None:
    """What a server sends is what the client raises."""
    for code, kind in [
        ("not-master", errors.NotMaster),
        ("busy", errors.Busy),
        ("above-confirm", errors.NotYetConfirmed),
        ("unknown", errors.OutcomeUnknown),
        ("corrupt", errors.Corrupt),
        ("unknown-queue", errors.UnknownTopic),
    ]:
        assert type(errors.from_code(code, "x")) is kind
    odd = errors.from_code("from-the-future", "x", retryable=True, hint="h", facts={"a": 1})
    assert (type(odd), odd.code, odd.retryable, odd.hint) == (
        errors.Unavailable,
        "from-the-future",
        True,
        "h",
    )
    assert type(errors.from_code("from-the-future", "x")) is errors.UsageError


def test_facts_have_types() -> None:
    """A fact that was not sent is None or 0."""
    error = errors.NotMaster("x", leader="n1", host="127.0.0.1", port=7410, epoch=3)
    assert (error.leader, error.address, error.epoch) == ("n1", "127.0.0.1:7410", 3)
    assert errors.NotMaster("x", address="h:1").address == "h:1"
    assert (errors.NotMaster("x").leader, errors.NotMaster("x").address) == (None, None)
    assert errors.OffsetGone("x", start=5).start == 5
    assert errors.OffsetBeyond("x", end=6).end == 6
    assert errors.NotYetConfirmed("x", confirm=7).confirm == 7
    assert errors.CorruptionError("x", offset=8).offset == 8
    refused = errors.RecordRefused("x", record=1, reason="size")
    assert (refused.record, refused.reason) == (1, "size")


def test_errors_travel_between_processes() -> None:
    """Pickled and back, with all parts."""
    error = errors.from_code("busy", "too much", hint="wait", facts={"limit": 5})
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), again.code, again.hint, again.facts, again.retryable) == (
        errors.Busy,
        "too much",
        "busy",
        "wait",
        {"limit": 5},
        True,
    )
