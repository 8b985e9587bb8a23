"""What ``doctor`` makes of a machine, its directories and a cluster."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cli.doctor import doctor
from cli.doctor.checks import (
    CLOCK_SECONDS_MAX,
    Directory,
    Finding,
    Grade,
    Machine,
    clocks,
    directory,
    machine,
    versions,
)
from cli.doctor.machine import file_system, flush_seconds, look_at_directory, look_at_machine
from storage.marks.quarantine import QUARANTINE
from tests.fakes.cli_cluster import FakeCluster

GOOD = Machine(
    python="3.11.7", kernels="compiled", cores=8, memory=64 << 30, descriptors=1 << 20,
    locked=-1, lock_wanted=True, clock_set=True, swap_used=0, java="17.0.2", spark="4.0.0",
    settings={
        "vm/swappiness": 1, "vm/max_map_count": 262_144, "vm/overcommit_memory": 0,
        "vm/dirty_ratio": 20, "vm/dirty_bytes": 1 << 30,
    },
    huge_pages="madvise", clock_source="tsc",
)  # fmt: skip
PLACE = Directory(
    node="n1", place="/var/lib/twinlog/n1", writable=True, kind="xfs", free=90, size=100,
    flush=0.001,
)  # fmt: skip


def graded(findings: Iterable[Finding]) -> dict[str, Grade]:
    """Checks that are not fine."""
    return {one.check: one.grade for one in findings if one.grade is not Grade.FINE}


def test_a_good_machine_and_directory() -> None:
    """Nothing to say."""
    assert graded([*machine(GOOD), *directory(PLACE)]) == {}


@pytest.mark.parametrize(
    ("change", "check", "grade"),
    [
        ({"kernels": "python"}, "kernels", Grade.BETTER),
        ({"cores": 1}, "processors", Grade.BETTER),
        ({"cores": None}, "processors", Grade.UNKNOWN),
        ({"descriptors": 1024}, "open files", Grade.BETTER),
        ({"descriptors": None}, "open files", Grade.UNKNOWN),
        ({"locked": 8 << 20}, "locked memory", Grade.BETTER),
        ({"locked": None}, "locked memory", Grade.UNKNOWN),
        ({"settings": {**GOOD.settings, "vm/swappiness": 60}}, "vm.swappiness", Grade.BETTER),
        ({"settings": {"vm/max_map_count": 70_000}}, "vm.swappiness", Grade.UNKNOWN),
        ({"settings": {"vm/swappiness": 1, "vm/max_map_count": 100}}, "vm.max_map_count",
         Grade.BETTER),
        ({"settings": {**GOOD.settings, "vm/overcommit_memory": 2}}, "vm.overcommit_memory",
         Grade.BETTER),
        ({"settings": {**GOOD.settings, "vm/dirty_bytes": 0}}, "vm.dirty_bytes", Grade.BETTER),
        ({"huge_pages": "always"}, "huge pages", Grade.BETTER),
        ({"clock_source": "hpet"}, "clock source", Grade.BETTER),
        ({"clock_set": False}, "clock", Grade.BETTER),
        ({"clock_set": None}, "clock", Grade.UNKNOWN),
        ({"swap_used": 1 << 30}, "swap", Grade.BETTER),
        ({"java": "11.0.1"}, "Spark", Grade.BETTER),
        ({"java": None}, "Spark", Grade.BETTER),
    ],
)  # fmt: skip
def test_a_machine_that_could_be_better(change: dict[str, Any], check: str, grade: Grade) -> None:
    """One thing at a time; what could not be found out is unknown, not fine."""
    assert graded(machine(replace(GOOD, **change))) == {check: grade}


def test_what_is_not_used_is_not_missed() -> None:
    """Locked memory without the setting, Java without PySpark."""
    unused = replace(GOOD, locked=0, lock_wanted=False, spark=None, java=None)
    assert graded(machine(unused)) == {}


@pytest.mark.parametrize(
    ("change", "check", "grade"),
    [
        ({"writable": False}, "writable", Grade.BETTER),
        ({"kind": "nfs4"}, "file system", Grade.WRONG),
        ({"kind": "tmpfs"}, "file system", Grade.BETTER),
        ({"kind": None}, "file system", Grade.UNKNOWN),
        ({"flush": 0.05}, "flush", Grade.BETTER),
        ({"flush": None}, "flush", Grade.UNKNOWN),
        ({"quarantined": True}, "store", Grade.WRONG),
        ({"free": 5}, "space", Grade.BETTER),
    ],
)
def test_a_directory_that_could_be_better(change: dict[str, Any], check: str, grade: Grade) -> None:
    """What is wrong names a command or a reason."""
    found = directory(replace(PLACE, **change))
    assert graded(found) == {check: grade}
    assert all(one.means for one in found if one.grade in (Grade.BETTER, Grade.WRONG))


def test_a_directory_that_does_not_exist_is_made_later() -> None:
    """No check of it can be made, and nothing is wrong."""
    assert graded(directory(Directory(node="n1", place="/nowhere", exists=False))) == {}


def test_versions_and_clocks_of_nodes() -> None:
    """They may differ for a while, and are named."""
    assert versions({"n1": "0.1.0", "n2": "0.1.0"}).grade is Grade.FINE
    assert versions({"n1": "0.1.0", "n2": "0.2.0"}).found == "n1 0.1.0, n2 0.2.0"
    assert clocks({}).grade is Grade.UNKNOWN
    assert clocks({"n1": 5.0, "n2": 5.5}).grade is Grade.FINE, "ours may be wrong"
    late = clocks({"n1": 0.0, "n2": CLOCK_SECONDS_MAX + 1, "n3": 1.0})
    assert late.grade is Grade.BETTER
    assert late.means.startswith("n1 and n2:")


def test_looking_at_this_machine(tmp_path: Path) -> None:
    """Facts of a real machine and a real directory; nothing is left behind."""
    found = look_at_machine(lock_wanted=True)
    assert found.kernels in ("compiled", "python")
    assert found.cores
    assert found.descriptors
    (tmp_path / "twinlog").mkdir()
    before = sorted(tmp_path.rglob("*"))
    place = look_at_directory("n1", tmp_path)
    assert place.free
    assert place.kind
    assert (place.writable, place.quarantined, place.runs) == (True, False, False)
    assert sorted(tmp_path.rglob("*")) == before
    (tmp_path / QUARANTINE).write_bytes(b"")
    assert look_at_directory("n1", tmp_path).quarantined
    assert not look_at_directory("n1", tmp_path / "none").exists
    assert flush_seconds(tmp_path / "none") is None


def test_the_file_system_is_that_of_the_longest_mount_point(tmp_path: Path) -> None:
    """Not of one whose name only begins alike; octal escapes are read."""
    inner = tmp_path / "a b"
    (inner / "c").mkdir(parents=True)
    (tmp_path / "a bc").mkdir()
    mounts = (
        f"/dev/x / ext4 rw 0 0\nhost:/y {str(inner).replace(' ', chr(92) + '040')} nfs4 rw 0 0\n"
    )
    assert file_system(inner / "c", mounts) == "nfs4"
    assert file_system(tmp_path / "a bc", mounts) == "ext4"
    assert file_system(tmp_path, "odd\n") is None


@pytest.fixture
def good(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that is as it should be."""
    monkeypatch.setattr(doctor, "look_at_machine", lambda *, lock_wanted: GOOD)


def asked(cluster: FakeCluster, *words: str) -> tuple[int, dict[str, Any]]:
    """The document of ``doctor``, and its exit code."""
    code, out, err = cluster.run("doctor", *words, "-o", "json")
    assert out, err
    found: dict[str, Any] = json.loads(out)
    return code, found


@pytest.mark.usefixtures("good")
def test_the_cluster_is_examined(tmp_path: Path) -> None:
    """Its problems are findings with their commands; the worst is the exit code."""
    cluster = FakeCluster(tmp_path)
    cluster.become_master("n1")
    cluster.state = {**(cluster.state or {}), "isr": {"n1": 3, "n2": 4, "n3": 5}}
    code, found = asked(cluster)
    assert (code, found["result"]) == (0, "unknown"), "clocks: the fake nodes do not say"
    cluster.down = {"n3"}
    code, found = asked(cluster)
    named = [one for one in found["findings"] if one["check"] == "health"]
    assert (code, found["result"]) == (1, "could be better")
    assert named[0]["command"] == "twinlog node start n3"
    assert named[0]["means"] == "writes work, something is missing"
    cluster.down = {"n1", "n2", "n3"}
    code, found = asked(cluster)
    dead = [one for one in found["findings"] if one["check"] == "health"]
    assert (code, len(dead)) == (2, 4), "no master, and each of the three"
    assert {one["means"] for one in dead} == {"writes do not work"}
    cluster.down = {"n1", "n2", "n3", "coordinator"}
    code, found = asked(cluster)
    assert (code, found["result"]) == (2, "wrong")
    out = cluster.run("doctor")[1]
    assert "cluster, health: no node of demo answers; nothing of the cluster answers" in out


@pytest.mark.usefixtures("good")
def test_without_a_cluster_the_machine_is_examined(tmp_path: Path) -> None:
    """A file with mistakes is wrong; --data looks at one directory and asks no node."""
    cluster = FakeCluster(tmp_path)
    code, found = asked(cluster, "--data", str(tmp_path))
    areas = {one["area"] for one in found["findings"]}
    assert areas == {"machine", "directory"}
    assert cluster.asked == []
    (tmp_path / "cluster.toml").write_text("[storage]\nflush = 3\n", encoding="utf-8")
    code, found = asked(cluster)
    assert code == 2
    assert found["findings"][-1]["command"] == "twinlog config check"
