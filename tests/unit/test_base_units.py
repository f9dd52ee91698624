"""UCUM codes of the vocabulary are accepted, and look-alikes are not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mhsd.base.units import is_unit

UNITS = [
    *(
        "mm/s",
        "mm",
        "ms",
        "s",
        "min",
        "h",
        "V",
        "A",
        "mV",
        "uA",
        "kOhm",
        "Hz",
        "MHz",
        "W",
        "J",
        "N",
        "Pa",
        "kPa",
    ),
    *("mbar", "Cel", "K", "Cel/min", "V/s", "m/s2", "m.s-2", "kg.m2/s3", "1", "%", "[ppm]", "/min", "1/s"),
    *("{count}", "{rev}/min", "m{diameter}", "m{a/b}", "deg", "rad", "'", "uL", "mL/min", "mol/L", "g/cm3"),
    *("10*3/uL", "10^-3", "mm[Hg]", "dB[V]", "dB", "[pH]", "eV", "By", "KiBy", "60.s", "mA.h/g", "m2.5"),
]
LOOK_ALIKES = [
    *(
        "",
        "/",
        "//s",
        "m/",
        "m//s",
        ".m",
        "m.",
        "mm / s",
        " mm",
        "mm\n",
        "MM",
        "Mm2x",
        "celsius",
        "degC",
        "C el",
    ),
    *(
        "kmin",
        "k%",
        "kkg",
        "rpm",
        "ohm",
        "Ω",
        "µm",
        "m²",
        "V/S/",
        "s--1",
        "m2,5",
        "m^2",
        "0",
        "01",
        "-1",
        "1.5.0",
    ),
    *("{", "}", "{a", "{ä}", "m{a}2x", "(m/s)", "[ppm", "mm/second", "a" * 65, "m" + ".m" * 40),
]


@pytest.mark.parametrize("unit", UNITS)
def test_a_unit_of_the_vocabulary_is_accepted(unit: str) -> None:
    assert is_unit(unit)


@pytest.mark.parametrize("text", LOOK_ALIKES)
def test_a_text_that_only_looks_like_a_unit_is_refused(text: str) -> None:
    assert not is_unit(text)


@given(
    st.lists(st.sampled_from([u for u in UNITS if not u.startswith("/")]), min_size=1, max_size=4), st.data()
)
def test_units_combine_by_point_and_slash(units: list[str], data: st.DataObject) -> None:
    text = units[0]
    for unit in units[1:]:
        text += data.draw(st.sampled_from(["/", "."])) + unit
    assert is_unit(text) == (len(text) <= 64)


@given(st.text(alphabet="mskVA1%[]{}*^/.-+' 2", max_size=70))
def test_any_text_gets_an_answer_and_no_unit_has_a_space(text: str) -> None:
    assert is_unit(text) in (True, False)
    assert not (is_unit(text) and " " in text.split("{")[0])
