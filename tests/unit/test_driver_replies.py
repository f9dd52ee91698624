"""What an instrument's answer is taken for, and what it is never taken for."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mhsd.driver.replies import (
    Garbled,
    Measured,
    error_entry,
    integer,
    measured,
    number,
    shown,
    switch,
    text_of,
)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (".5", 0.5),
        ("-.5", -0.5),
        ("+5.000000E+00", 5.0),
        (" 12.5\r", 12.5),
        ("4.0000E+03", 4000.0),
        ("1.", 1.0),
        ("-1e-3", -0.001),
    ],
)
def test_a_number_in_any_of_the_ways_instruments_write_it_is_read(text: str, value: float) -> None:
    assert measured(text) == Measured(value, "good")
    assert number(text) == value


@pytest.mark.parametrize(
    "text",
    [
        "1,234",
        "12,5",
        "0x10",
        "CH1 12.5",
        '-113,"Undefined header"',
        "12.5 V",
        "1_0",
        "",
        ".",
        "e5",
        "1e9999",
        "--1",
        "1 2",
        "\u0663",
        "\u06632.5",
        "nano",
    ],
)
def test_text_that_only_contains_a_number_is_not_understood(text: str) -> None:
    with pytest.raises(Garbled):
        measured(text)


@pytest.mark.parametrize(
    "text", ["9.9E37", "-9.9E37", "9.900000E+37", "199.999E99", "1e999", "INF", "-inf", "NINF"]
)
def test_an_overload_mark_is_no_value_and_overrange(text: str) -> None:
    assert measured(text) == Measured(None, "overrange")


@pytest.mark.parametrize("text", ["9.91E37", "9.91E+37", "-9.910000E+37", "NAN", "nan"])
def test_a_not_a_number_mark_is_no_value_and_invalid(text: str) -> None:
    assert measured(text) == Measured(None, "invalid")


@pytest.mark.parametrize("text", ["9.9E37", "9.91E37", "NAN"])
def test_a_setpoint_that_reads_back_as_a_mark_is_not_understood(text: str) -> None:
    with pytest.raises(Garbled):
        number(text)


def test_a_negative_zero_is_read_as_zero() -> None:
    assert str(number("-0.0")) == "0.0"


def test_an_integer_may_come_in_exponent_form_and_never_with_a_fraction() -> None:
    assert integer("4.0000E+03") == 4000
    assert type(integer("4.0000E+03")) is int
    with pytest.raises(Garbled):
        integer("4.5E0")


@pytest.mark.parametrize(("text", "state"), [("1", True), ("ON", True), ("0\r", False), ("off", False)])
def test_a_switch_state_is_read(text: str, state: bool) -> None:
    assert switch(text) is state


@pytest.mark.parametrize("text", ["2", "1.0", "", "TRUE", "10", "\u0661"])
def test_anything_else_is_no_switch_state(text: str) -> None:
    with pytest.raises(Garbled):
        switch(text)


@pytest.mark.parametrize(
    ("text", "entry"),
    [
        ('0,"No error"', (0, "No error")),
        ('+0,"No error"', (0, "No error")),
        ('-222,"Data out of range"', (-222, "Data out of range")),
        ("-113,Undefined header", (-113, "Undefined header")),
    ],
)
def test_an_entry_of_the_error_queue_is_code_and_text(text: str, entry: tuple[int, str]) -> None:
    assert error_entry(text) == entry


@pytest.mark.parametrize("text", ["", "5.000E+00", "No error", "0"])
def test_a_reply_without_code_and_text_is_no_error_entry(text: str) -> None:
    with pytest.raises(Garbled):
        error_entry(text)


def test_bytes_outside_ascii_are_not_text_and_are_shown_in_hex() -> None:
    with pytest.raises(Garbled, match="ff 00 b0 43"):
        text_of(b"\xff\x00\xb0C 21.5")


def test_a_quoted_reply_is_short_and_moves_no_terminal() -> None:
    quoted = shown("\x1b[2J" + "x" * 500)
    assert len(quoted) < 90
    assert "\x1b" not in quoted


@given(st.floats(min_value=-1e30, max_value=1e30), st.sampled_from(["{!r}", "{:.17E}", "{:+.17E}"]))
def test_every_finite_float_survives_the_way_to_the_instrument_and_back(value: float, form: str) -> None:
    assert number(form.format(value)) == value


@given(st.text(max_size=40))
def test_any_text_is_a_finite_number_a_mark_or_not_understood(text: str) -> None:
    try:
        found = measured(text)
    except Garbled:
        return
    assert (found.value is None) == (found.quality != "good")
    assert found.value is None or abs(found.value) < 9.9e37
