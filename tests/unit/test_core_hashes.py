"""State hashes: what is excluded by pointer moves no hash, everything else does [PROTO-023]."""

import hashlib
import json
from typing import Any

import pytest

from mhsd.core.hashes import device_hash, pointer_parts, resource_hash, without_exclusions


def sha(text: str) -> str:
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()


def test_without_exclusions_the_hash_is_that_of_the_canonical_state() -> None:
    assert resource_hash({"b": 1, "a": [True, None]}, ()) == sha('{"a":[true,null],"b":1}')


@pytest.mark.parametrize(
    ("pointer", "left"),
    [
        ("/drift", {"kept": 1, "deep": {"x": 1, "y": 2}, "list": [10, [20, 21], {"z": 30}]}),
        ("/deep/x", {"kept": 1, "drift": 2, "deep": {"y": 2}, "list": [10, [20, 21], {"z": 30}]}),
        ("/deep", {"kept": 1, "drift": 2, "list": [10, [20, 21], {"z": 30}]}),
        ("/list/0", {"kept": 1, "drift": 2, "deep": {"x": 1, "y": 2}, "list": [[20, 21], {"z": 30}]}),
        ("/list/1/1", {"kept": 1, "drift": 2, "deep": {"x": 1, "y": 2}, "list": [10, [20], {"z": 30}]}),
        ("/list/2/z", {"kept": 1, "drift": 2, "deep": {"x": 1, "y": 2}, "list": [10, [20, 21], {}]}),
    ],
)
def test_a_pointer_leaves_out_exactly_what_it_points_at(pointer: str, left: dict[str, Any]) -> None:
    state = {"kept": 1, "drift": 2, "deep": {"x": 1, "y": 2}, "list": [10, [20, 21], {"z": 30}]}
    assert without_exclusions(state, (pointer,)) == left


@pytest.mark.parametrize(
    "pointer",
    [
        "",
        "/",
        "/missing",
        "/kept/below/a/number",
        "/list/2",
        "/list/-1",
        "/list/-",
        "/list/00",
        "/list/\u0660",
        "/list/²",
        "/list/1e0",
        "/deep/0",
        "kept",
    ],
)
def test_a_pointer_to_nothing_excludes_nothing(pointer: str) -> None:
    state = {"kept": 1, "list": [10, 20], "deep": {"x": 1}}
    assert without_exclusions(state, (pointer,)) == state


@pytest.mark.parametrize(
    ("pointer", "name"),
    [
        ("/a~1b", "a/b"),
        ("/a~0b", "a~b"),
        ("/~01", "~1"),
        ("/~1~0", "/~"),
        ("/", ""),
        ("/0", "0"),
        ("/ä", "ä"),
    ],
)
def test_a_pointer_can_name_any_member(pointer: str, name: str) -> None:
    assert pointer_parts(pointer) == [name]
    assert without_exclusions({name: 1, "kept": 2}, (pointer,)) == {"kept": 2}


def test_indexes_mean_places_in_the_whole_array_whatever_else_is_left_out() -> None:
    state = {"samples": ["a", "b", "c", "d"]}
    assert without_exclusions(state, ("/samples/0", "/samples/2")) == {"samples": ["b", "d"]}
    assert without_exclusions(state, ("/samples/2", "/samples/0")) == {"samples": ["b", "d"]}


@pytest.mark.parametrize("pointers", [("/a", "/a/b"), ("/a/b", "/a"), ("/a/b/c", "/a", "/a/b")])
def test_what_is_left_out_as_a_whole_stays_left_out(pointers: tuple[str, ...]) -> None:
    assert without_exclusions({"a": {"b": {"c": 1}, "d": 2}, "e": 3}, pointers) == {"e": 3}


def test_several_members_of_one_object_are_left_out() -> None:
    state = {"a": {"b": 1, "c": 2, "d": 3}}
    assert without_exclusions(state, ("/a/b", "/a/c")) == {"a": {"d": 3}}


def test_the_state_itself_is_not_changed() -> None:
    state = {"drift": 1, "deep": {"drift": 2}, "list": [1, {"drift": 3}]}
    before = json.dumps(state)
    without_exclusions(state, ("/drift", "/deep/drift", "/list/1/drift"))
    assert json.dumps(state) == before


def test_only_what_is_not_excluded_moves_the_hash() -> None:
    exclusions = ("/duty", "/samples/0")
    first = resource_hash({"setpoint": 20, "duty": 0.1, "samples": [1, 2]}, exclusions)
    assert resource_hash({"setpoint": 20, "duty": 0.9, "samples": [7, 2]}, exclusions) == first
    assert resource_hash({"setpoint": 20, "samples": [7, 2]}, exclusions) == first
    assert resource_hash({"setpoint": 21, "duty": 0.1, "samples": [1, 2]}, exclusions) != first
    assert resource_hash({"setpoint": 20, "duty": 0.1, "samples": [1, 3]}, exclusions) != first


def test_the_device_hash_covers_every_resource_under_its_own_exclusions() -> None:
    resources = {"belt": {"speed": 1, "drift": 2}, "valve": {"open": False, "drift": 3}}
    value = device_hash(resources, {"belt": ("/drift",)})
    assert value == sha('{"belt":{"speed":1},"valve":{"drift":3,"open":false}}')
    assert device_hash({}, {"belt": ("/drift",)}) == sha("{}")


def test_equal_numbers_hash_alike_and_true_is_not_one() -> None:
    assert resource_hash({"a": 1.0}, ()) == resource_hash({"a": 1}, ())
    assert resource_hash({"a": -0.0}, ()) == resource_hash({"a": 0}, ())
    assert resource_hash({"a": True}, ()) != resource_hash({"a": 1}, ())
