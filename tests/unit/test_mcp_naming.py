"""Tools have the names that the slug rules give, within 63 characters, and always the same ones [TPT-030, TPT-032]."""

import hashlib
import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mhsd.mcp.naming import LONGEST_NAME, capability_slug, device_slug, tool_name

LAB = "mhs://localhost:7400/lab/conveyor-workcell"


def mark(text: str, digits: int = 6) -> str:
    """The digest as a third party computes it: over the JSON string."""
    return hashlib.sha256(json.dumps(text, ensure_ascii=False).encode()).hexdigest()[:digits]


def test_the_example_of_the_specification() -> None:
    """[TPT-030]"""
    assert tool_name(LAB, "cap.world.step.v1") == "mhs__lab_conveyor_workcell__world_step"


@pytest.mark.parametrize(
    ("device_id", "slug"),
    [
        (LAB, "lab_conveyor_workcell"),
        ("mhs://h/site/hall/lab/psu", "lab_psu"),
        ("mhs://h//lab///psu/", "lab_psu"),
        ("mhs://h/LAB/Psu-2~x.y", "lab_psu_2_x_y"),
        ("mhs://[::1]:7400/a/b", "a_b"),
        ("mhs://h/-a-/-b-", "a_b"),
        ("mhs://h/a%20b/c", "a_20b_c"),
    ],
)
def test_a_device_is_named_by_the_last_two_segments_of_its_path(device_id: str, slug: str) -> None:
    assert device_slug(device_id) == slug


def test_a_single_segment_gets_four_digits_of_the_digest() -> None:
    device_id = "mhs://localhost:7400/psu"
    assert device_slug(device_id) == f"psu_{mark(device_id, 4)}"


@pytest.mark.parametrize("device_id", ["mhs://h", "mhs://h/", "mhs://h/~", "mhs://h/~/-"])
def test_a_path_without_a_usable_character_is_named_by_the_digest(device_id: str) -> None:
    assert device_slug(device_id) == mark(device_id, 4)


def test_a_device_slug_of_24_characters_is_whole_and_one_more_is_cut_and_marked() -> None:
    whole, longer = "mhs://h/aaaaaaaaaaa/bbbbbbbbbbbb", "mhs://h/aaaaaaaaaaa/bbbbbbbbbbbbc"
    assert device_slug(whole) == "aaaaaaaaaaa_bbbbbbbbbbbb"
    assert device_slug(longer) == f"aaaaaaaaaaa_bbbbbbbbbbbb_{mark(longer)}"


@pytest.mark.parametrize(
    ("capability_id", "slug"),
    [
        ("cap.world.step.v1", "world_step"),
        ("x-cap.sim.door.v1", "sim_door"),
        ("cap.device.configure.v12", "device_configure"),
        ("cap.foo-bar.v2.v3", "foo-bar_v2"),
        ("cap.a1234567890123456789.v1", "a1234567890123456789"),
    ],
)
def test_a_capability_is_named_without_prefix_and_version(capability_id: str, slug: str) -> None:
    assert capability_slug(capability_id) == slug


def test_a_capability_slug_of_21_characters_is_cut_and_marked() -> None:
    capability_id = "cap.electrical.waveform.v1"
    assert capability_slug("cap.electrical.waveforms.v1") == "electrical_waveforms"
    longer = "cap.electrical.waveform_s.v1"
    assert capability_slug(longer) == f"electrical_waveform__{mark(longer)}"
    assert capability_slug(capability_id) == "electrical_waveform"


def test_a_name_over_63_characters_has_both_slugs_cut_to_12_and_one_mark() -> None:
    device_id = "mhs://h/spectroscopy-laboratory/femtosecond-laser"
    capability_id = "cap.electrical.waveform_generate.v1"
    expected = f"mhs__spectroscopy__electrical_w_{mark(device_id + chr(10) + capability_id)}"
    assert tool_name(device_id, capability_id) == expected
    assert len(f"mhs__{device_slug(device_id)}__{capability_slug(capability_id)}") > LONGEST_NAME


def test_one_long_slug_alone_keeps_the_other_whole() -> None:
    device_id = "mhs://h/spectroscopy-laboratory/femtosecond-laser"
    assert tool_name(device_id, "cap.a.b.v1") == f"mhs__spectroscopy_laboratory__{mark(device_id)}__a_b"


def test_an_id_that_gives_no_name_is_refused() -> None:
    with pytest.raises(ValueError, match="no tool name may have"):
        tool_name(LAB, "cap.größe.v1")


SEGMENT = st.text("abcXYZ019-._~", min_size=1, max_size=40)
CAPABILITY = st.from_regex(r"(x-)?cap(\.[a-z0-9_-]{1,24}){1,4}\.v[1-9][0-9]?", fullmatch=True)


@given(path=st.lists(SEGMENT, min_size=1, max_size=4), capability_id=CAPABILITY)
def test_every_name_is_valid_and_within_63_characters(path: list[str], capability_id: str) -> None:
    """[TPT-030]"""
    name = tool_name(f"mhs://localhost:7400/{'/'.join(path)}", capability_id)
    assert len(name) <= 63
    assert re.fullmatch(r"[A-Za-z_][A-Za-z0-9_-]{0,63}", name)


@given(
    ends=st.lists(st.text("ab", min_size=1, max_size=4), min_size=2, max_size=2, unique=True),
    capability_id=CAPABILITY,
)
def test_devices_that_differ_only_behind_the_cut_have_different_names(
    ends: list[str], capability_id: str
) -> None:
    one, other = (f"mhs://h/lab/{'x' * 24}{end}" for end in ends)
    assert tool_name(one, capability_id) != tool_name(other, capability_id)
