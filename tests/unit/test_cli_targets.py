"""Which device a command means, and what is said where that is not clear."""

from typing import Any

import pytest

from mhsd.cli.boundary import UsageProblem
from mhsd.cli.targets import bindings_of, chosen, named, resource_of
from mhsd.client.errors import MHSError
from mhsd.client.naming import devices_of, name_of, path_of

BELT: dict[str, Any] = {
    "device_id": "mhs://localhost:7400/lab/belt",
    "display_name": "The belt",
    "bindings": [
        {"capability_id": "cap.a.v1", "resource": "r"},
        {"capability_id": "cap.b.v1", "resource": "s"},
    ],
    "resources": [{"resource_id": "r"}],
}
PSU: dict[str, Any] = {"device_id": "mhs://localhost:7400/bench/psu", "display_name": "Supply"}
PSU_2: dict[str, Any] = {"device_id": "mhs://localhost:7400/lab/psu", "display_name": "Supply"}


@pytest.mark.parametrize("reference", ["mhs://localhost:7400/lab/belt", "/lab/belt", "belt", "The belt"])
def test_a_device_has_four_names(reference: str) -> None:
    assert named([PSU, BELT], reference) is BELT


def test_a_name_that_several_devices_share_is_refused_with_their_paths() -> None:
    with pytest.raises(UsageProblem, match="/bench/psu, /lab/psu"):
        named([BELT, PSU, PSU_2], "psu")
    assert named([BELT, PSU, PSU_2], "/lab/psu") is PSU_2


def test_an_unknown_device_is_an_error_that_lists_the_known_ones() -> None:
    with pytest.raises(MHSError, match="/lab/belt, /bench/psu") as unknown:
        named([BELT, PSU], "oven")
    assert unknown.value.mhs_code == "MHS.DEVICE.UNKNOWN"


def test_without_a_name_the_only_fitting_device_is_meant() -> None:
    assert chosen([BELT, PSU], None, lambda device: bool(bindings_of(device, "cap.a.v1"))) is BELT
    assert chosen([BELT], None, lambda _: False) is BELT


@pytest.mark.parametrize("fits", [True, False])
def test_without_a_name_and_with_a_choice_the_command_is_refused(fits: bool) -> None:
    with pytest.raises(UsageProblem, match="--device"):
        chosen([BELT, PSU], None, lambda _: fits, "a resource r")


@pytest.mark.parametrize(
    ("fits", "what", "said"),
    [
        (True, "a resource x", "several devices have a resource x; "),
        (False, "a resource x", "none of the devices has a resource x; "),
        (True, "", "the endpoint has several devices; "),
    ],
)
def test_a_choice_says_what_it_is_between(fits: bool, what: str, said: str) -> None:
    with pytest.raises(UsageProblem, match=f"^{said}name one with --device: "):
        chosen([BELT, PSU], None, lambda _: fits, what)


def test_an_endpoint_without_devices_has_none_to_mean() -> None:
    with pytest.raises(MHSError):
        chosen([], None)


def test_paths_and_parts_of_a_device() -> None:
    assert path_of("mhs://h:1/a/b") == "/a/b"
    assert path_of("odd") == "odd"
    assert name_of(BELT) == "belt"
    assert resource_of(BELT, "r") == {"resource_id": "r"}
    assert resource_of(PSU, "r") is None
    assert devices_of({"devices": [BELT, 3, {}, {"device_id": 4}]}) == [BELT]
    assert devices_of({"devices": None}) == []
