"""The latch file has room for a fixed number of bytes, and a stop must be kept whatever it says."""

from pathlib import Path
from typing import Any

import pytest

from mhsd.store.latch import LatchFile, open_latch

NOW = "2026-10-20T07:45:00.000Z"


def latches(count: int, reason: str) -> dict[str, Any]:
    return {
        f"mhs://localhost:7400/lab/device-{number}": {"reason": reason, "engaged_at": NOW}
        for number in range(count)
    }


def written(path: Path, *contents: dict[str, Any]) -> LatchFile:
    file = open_latch(path, fresh=True, now=NOW)
    for content in contents:
        file.write(content)
    file.close()
    return open_latch(path, fresh=False, now=NOW)


@pytest.mark.parametrize(
    "reason", ["x" * 2000, "\u20ac" * 2000, '"\\' * 1000], ids=["ascii", "euro", "quotes"]
)
def test_long_reasons_are_cut_where_all_of_them_do_not_fit(tmp_path: Path, reason: str) -> None:
    """[CORE-186, MHSD-5-09]"""
    one = written(tmp_path / "one", latches(1, reason)).latched
    assert {record.reason for record in one.values()} == {reason}
    many = written(tmp_path / "many", latches(100, reason)).latched
    assert set(many) == set(latches(100, reason))
    assert {record.reason for record in many.values()} == {reason[:64]}


def test_where_not_even_the_devices_fit_every_device_is_latched(tmp_path: Path) -> None:
    """[CORE-186, MHSD-5-09]"""
    reopened = written(tmp_path / "latch", latches(2000, "smoke"))
    assert reopened.latched["mhs://localhost:7400/lab/device-7"].reason == "smoke"
    assert reopened.latched["mhs://localhost:7400/lab/another"].engaged_at == NOW
    reopened.write(latches(1, "smoke"))
    reopened.close()
    assert set(open_latch(tmp_path / "latch", fresh=False, now=NOW).latched) == set(latches(1, "smoke"))
