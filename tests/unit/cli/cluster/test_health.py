"""What ``cluster status`` and ``cluster health`` say about trouble, sentence by sentence.

Each sentence of `cli.cluster.health.SENTENCES` is played on a fake cluster, and the page
``docs/when-something-is-broken.md`` has a section for it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from cli.cluster.health import SENTENCES, Grade
from cli.drill.scenario import shipped
from cli.failures import Exit
from replication.settings import DISK_FULL
from tests.fakes.cli_cluster import CONFIG, FakeCluster, peer

PAGE = Path(__file__).parents[4] / "docs" / "when-something-is-broken.md"

Play = Callable[[FakeCluster], None]


def _level(cluster: FakeCluster) -> None:
    """Nothing is wrong: n3 is in sync, too."""
    cluster.become_master("n1")
    cluster.state = {**(cluster.state or {}), "isr": {"n1": 3, "n2": 4, "n3": 5}}


def _slaves_only(cluster: FakeCluster) -> None:
    for node in cluster.nodes.values():
        node |= {"role": "slave", "writable": False}


def _state(cluster: FakeCluster, **changes: object) -> None:
    cluster.state = {**(cluster.state or {}), **changes}


def _away(cluster: FakeCluster, *names: str) -> None:
    cluster.down = set(names)


def _waiting(cluster: FakeCluster) -> None:
    _slaves_only(cluster)
    _state(cluster, leader=None, epoch=0, isr={}, revision=0)
    for node in cluster.nodes.values():
        node["offsets"] = {}
    _away(cluster, "n2", "n3")


def _refused(code: str) -> Play:
    def play(cluster: FakeCluster) -> None:
        cluster.nodes["n1"] |= {"writable": False, "admission": code}

    return play


def _restarted_without_coordinator(cluster: FakeCluster) -> None:
    """n2 runs, and has no role: only the coordinator gives a session."""
    cluster.nodes["n2"] |= {"role": "fenced", "state": "fenced"}
    _away(cluster, "coordinator")


def _full_slave(cluster: FakeCluster) -> None:
    late = peer("n3", lag=1 << 20, seconds=1.0, contact=1.0, in_sync=False)
    cluster.nodes["n1"]["peers"] = [late]
    cluster.nodes["n3"] |= {"state": "waiting", "why": f"{DISK_FULL}: commitlog: ENOSPC"}


def _few(cluster: FakeCluster) -> None:
    _refused("not-enough-in-sync")(cluster)
    cluster.nodes["n1"]["in_sync"] = ["n1"]


def _few_and_away(cluster: FakeCluster) -> None:
    _few(cluster)
    _away(cluster, "n2")


def _all_but_the_master_away(cluster: FakeCluster) -> None:
    _away(cluster, "n2", "n3", "coordinator")


def _nobody_left(cluster: FakeCluster) -> None:
    _state(cluster, isr={"n1": 3, "n2": 4})
    _away(cluster, "n1", "n2")


def _nobody_named(cluster: FakeCluster) -> None:
    _slaves_only(cluster)
    _state(cluster, leader=None)


def _nobody_and_no_coordinator(cluster: FakeCluster) -> None:
    _slaves_only(cluster)
    _away(cluster, "coordinator")


def _two_masters(cluster: FakeCluster) -> None:
    cluster.nodes["n2"] |= {"role": "master", "epoch": 6}


def _cannot_join(cluster: FakeCluster) -> None:
    late = peer("n3", lag=1, seconds=1.0, contact=1.0, in_sync=False)
    late["why"] = "RESEED: the slave's log shares no byte with the kept log"
    cluster.nodes["n1"]["peers"] = [late]


def _lagging(cluster: FakeCluster) -> None:
    late = peer("n3", lag=1 << 20, seconds=1.0, contact=1.0, in_sync=False)
    cluster.nodes["n1"]["peers"] = [late]


def _slow(cluster: FakeCluster) -> None:
    late = peer("n3", lag=100, seconds=0.0, contact=0.0, in_sync=True)
    cluster.nodes["n1"]["peers"] = [late | {"slow": True, "round_trip_seconds": 0.023}]


def _other_register(cluster: FakeCluster) -> None:
    cluster.nodes["n2"]["coordinator"] = {"register_id": "another"}


def _vacant(cluster: FakeCluster) -> None:
    _nobody_named(cluster)
    cluster.state = {**(cluster.state or {}), "isr": {}, "elr": {}, "vacant": 12}


def _etcd_away(cluster: FakeCluster) -> None:
    """The register is in etcd, and nothing listens at its address."""
    _away(cluster, "coordinator")
    text = CONFIG + '[coordinator]\nkind = "etcd"\netcd = ["127.0.0.1:9"]\n'
    (cluster.directory / "cluster.toml").write_text(text, encoding="utf-8")


def _suspect(*wiped: str) -> Play:
    def play(cluster: FakeCluster) -> None:
        _state(cluster, isr={"n1": 3, "n3": 5}, suspect={"n2": 4}, wiped=list(wiped))

    return play


def _all_held(cluster: FakeCluster) -> None:
    _slaves_only(cluster)
    _away(cluster, "n1")
    held: list[object] = ["user a", "", 1000, 0]
    _state(cluster, maintenance={"n2": held, "n3": held})


PLAYS: dict[str, Play] = {
    "vacant": _vacant,
    "master-gone": lambda cluster: _away(cluster, "n1"),
    "no-candidate": _nobody_left,
    "master-starting": _slaves_only,
    "first-election": _waiting,
    "no-master": _nobody_named,
    "no-master-no-coordinator": _nobody_and_no_coordinator,
    "not-enough-in-sync": _few_and_away,
    "too-few-in-sync": _few,
    "writes-wait": _all_but_the_master_away,
    "disk-full": _refused("disk-full"),
    "busy": _refused("busy"),
    "writes-refused": _refused("not-master"),
    "old-master": _two_masters,
    "node-down": lambda cluster: _away(cluster, "n2"),
    "node-silent": lambda cluster: cluster.silent.add("n2"),
    "other-node": lambda cluster: cluster.nodes["n2"].update(node="n3"),
    "repairing": lambda cluster: cluster.nodes["n2"].update(scrub={"waiting": 1}),
    "quarantined": lambda cluster: cluster.nodes["n2"].update(quarantined="bad CRC at 4096"),
    "cannot-join": _cannot_join,
    "other-directory": _suspect("n2"),
    "unclean": _suspect(),
    "no-member": lambda cluster: _state(cluster, replicas=["n1", "n2"], isr={"n1": 3, "n2": 4}),
    "full-slave": _full_slave,
    "not-in-sync": _lagging,
    "slow-slave": _slow,
    "coordinator-away": lambda cluster: _away(cluster, "coordinator"),
    "etcd-away": _etcd_away,
    "other-coordinator": lambda cluster: setattr(cluster, "owner", "shop"),
    "register-empty": lambda cluster: _state(cluster, revision=0, leader=None),
    "other-register": _other_register,
    "register-read-only": lambda cluster: setattr(cluster, "alarm", "it went back"),
    "register-waiting": lambda cluster: cluster.waiting.append("n2"),
    "paused": lambda cluster: _state(cluster, pause=["user a", "switches", 1000, 3_601_000]),
    "maintenance": lambda cluster: _state(cluster, maintenance={"n2": ["user a", "", 1000, 0]}),
    "all-in-maintenance": _all_held,
    "other-leader": lambda cluster: _state(cluster, leader="n2"),
}


def _asked(cluster: FakeCluster, *words: str) -> tuple[int, dict[str, object]]:
    code, out, err = cluster.run(*words, "-o", "json")
    assert out, err
    found: dict[str, object] = json.loads(out)
    return code, found


@pytest.mark.parametrize("code", PLAYS)
def test_each_trouble_has_its_sentence(code: str, tmp_path: Path) -> None:
    """Status and health name it, with a command, and the exit code is that of the worst one."""
    cluster = FakeCluster(tmp_path)
    _level(cluster)
    PLAYS[code](cluster)
    exit_code, found = _asked(cluster, "cluster", "health")
    problems = found["problems"]
    assert isinstance(problems, list)
    named = {problem["code"]: problem for problem in problems}
    assert code in named, named
    assert named[code]["command"].startswith("twinlog ")
    worst = Grade.UNAVAILABLE if any(
        SENTENCES[one].grade is Grade.UNAVAILABLE for one in named
    ) else Grade.DEGRADED  # fmt: skip
    assert found["health"] == worst
    assert exit_code == (2 if worst is Grade.UNAVAILABLE else 1)
    status = cluster.run("cluster", "status")[1]
    assert named[code]["text"] in status
    assert named[code]["command"] in status
    assert "· healthy" not in status


def _writes_wait(cluster: FakeCluster) -> tuple[int, str | None]:
    """The exit code of health, and the command that goes on if writes are said to wait."""
    code, found = _asked(cluster, "cluster", "health")
    problems = found["problems"]
    assert isinstance(problems, list)
    waits = [one["command"] for one in problems if one["code"] == "writes-wait"]
    return code, waits[0] if waits else None


def test_a_member_without_a_role_holds_writes_up(tmp_path: Path) -> None:
    """It answers, but only the coordinator can give it a session or take it out of the set."""
    cluster = FakeCluster(tmp_path)
    _restarted_without_coordinator(cluster)
    assert _writes_wait(cluster) == (2, "twinlog coordinator start")


def test_a_member_that_is_cut_off_holds_writes_up(tmp_path: Path) -> None:
    """It answers us, but its master has not heard of it for longer than a link may be silent."""
    cluster = FakeCluster(tmp_path)
    _away(cluster, "coordinator")
    assert _writes_wait(cluster) == (1, None)
    late = peer("n2", lag=100, seconds=4.0, contact=4.0, in_sync=True)
    cluster.nodes["n1"]["peers"] = [late]
    assert _writes_wait(cluster) == (2, "twinlog coordinator start")


def test_a_register_that_refuses_holds_writes_up(tmp_path: Path) -> None:
    """It cannot take a dead member out either; the way back is the register's."""
    cluster = FakeCluster(tmp_path)
    _away(cluster, "n2")
    assert _writes_wait(cluster) == (1, None)
    cluster.alarm = "it went back"
    assert _writes_wait(cluster) == (2, "twinlog coordinator status")
    cluster.alarm = None
    cluster.waiting.append("n2")
    assert _writes_wait(cluster) == (2, "twinlog node start n2")
    cluster.waiting.clear()
    _other_register(cluster)
    cluster.nodes["n1"]["coordinator"] = {"register_id": "another"}
    assert _writes_wait(cluster) == (2, "twinlog coordinator recover --dry-run")


def test_what_is_wrong_is_red(tmp_path: Path) -> None:
    """Not the command that goes on, and not without colours."""
    cluster = FakeCluster(tmp_path)
    _level(cluster)
    PLAYS["paused"](cluster)
    plain = cluster.run("cluster", "status", "--color", "never")[1]
    assert "\x1b" not in plain
    coloured = cluster.run("cluster", "status", "--color", "always")[1]
    assert "\x1b[31mautomatic failover is paused" in coloured
    assert "  next: twinlog cluster resume" in coloured.splitlines()


def test_every_sentence_is_played() -> None:
    """A new sentence needs a cluster that makes it true."""
    assert set(PLAYS) == set(SENTENCES)


def test_a_healthy_cluster(tmp_path: Path) -> None:
    """Exit 0, and nothing to do."""
    cluster = FakeCluster(tmp_path)
    _level(cluster)
    code, out, err = cluster.run("cluster", "health")
    assert (code, out, err) == (Exit.OK, "demo is healthy\n", "")


def test_nobody_answers(tmp_path: Path) -> None:
    """Health is 2, not 69: it was asked and the answer is no."""
    cluster = FakeCluster(tmp_path, down={"n1", "n2", "n3", "coordinator"})
    code, out, err = cluster.run("cluster", "health")
    assert (code, out) == (2, "")
    assert "no node of demo answers" in err


VALUES = {
    "cluster": "prod", "leader": "n1", "master": "n1", "epoch": 7, "old": 6, "names": "n1, n2",
    "first": "n2", "node": "n2", "address": "10.0.0.2:7410", "stranger": "n3 of prod",
    "members": "10.0.0.1:2379", "why": "...", "count": 1, "least": 2, "data": "DIR",
    "seconds": "23 ms",
}  # fmt: skip
"""The page's examples."""
HELD = {"who": "user ann", "since": "2026-11-21T10:00:00Z", "why": ""}
EXCEPT = {
    "other-coordinator": {"stranger": "shop"},
    "other-leader": {"leader": "n2"},
    "paused": HELD | {"until": "2026-11-21T11:00:00Z"},
    "maintenance": HELD,
    "all-in-maintenance": {"names": "n2"},
}


@pytest.mark.parametrize("code", SENTENCES)
def test_the_page_has_each_sentence(code: str) -> None:
    """A section whose title is the sentence, with the command that the program prints."""
    sentence = SENTENCES[code]
    values = VALUES | EXCEPT.get(code, {})
    text = PAGE.read_text(encoding="utf-8")
    _, found, section = text.partition(f"### {sentence.text.format(**values)}\n")
    assert found, f"no section: {sentence.text.format(**values)}"
    command = sentence.command.format(**values)
    if command.startswith("START "):
        name = command.removeprefix("START ")
        command = (
            "twinlog coordinator start" if name == "coordinator" else f"twinlog node start {name}"
        )
    assert command in section.partition("\n### ")[0], command


def test_the_page_has_no_other_sentence() -> None:
    """What the program no longer says leaves the page, too."""
    titles = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line[:4] == "### "]
    assert len(titles) == len(SENTENCES)


ROW = re.compile(r"^\| `([a-z-]+)` \| (.*) \|$", re.MULTILINE)


def test_each_way_back_names_the_tests_that_go_it() -> None:
    """The table at the end of the page has each sentence, and tests and drills that are there."""
    rows = dict(ROW.findall(PAGE.read_text(encoding="utf-8")))
    assert set(rows) == set(SENTENCES)
    for code, told in rows.items():
        assert "::test_" in told, f"{code}: no test goes the way back"
        for one in told.split(", "):
            if one.startswith("drill "):
                assert one[6:].strip("`") in shipped(), f"{code}: {one}"
                continue
            file, _, name = one.strip("`").partition("::")
            text = (PAGE.parents[1] / file).read_text(encoding="utf-8")
            assert re.search(rf"^(async )?def {name}\(", text, re.MULTILINE), f"{code}: {one}"


def test_processes_of_dev_are_started_by_dev(tmp_path: Path) -> None:
    """In a cluster of ``dev up`` a stopped node is started through it."""
    import fcntl

    cluster = FakeCluster(tmp_path, down={"n2"})
    (tmp_path / "dev").mkdir()
    with (tmp_path / "dev" / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        out = cluster.run("cluster", "status")[1]
    assert f"next: twinlog dev start n2 --data {tmp_path}" in out
    assert "next: twinlog node start n2" in cluster.run("cluster", "status")[1]


def test_hints_name_the_cluster_as_the_call_did(tmp_path: Path) -> None:
    """A pasted command asks the cluster that was asked; the environment needs no repeating."""
    cluster = FakeCluster(tmp_path, down={"n2"})
    path = tmp_path / "a b.toml"
    cluster.run("cluster", "status")
    path.write_text((tmp_path / "cluster.toml").read_text(encoding="utf-8"), encoding="utf-8")
    out = cluster.run("cluster", "status", "-c", str(path))[1]
    assert f"next: twinlog -c '{path}' node start n2" in out
    cluster = FakeCluster(tmp_path, down={"n1", "n2", "n3", "coordinator"})
    err = cluster.run("-e", "127.0.0.1:7410", "cluster", "failover")[2]
    assert "twinlog dev up" in err


def test_open_ports_without_tls_are_a_red_line(tmp_path: Path) -> None:
    """It is no trouble that a command could mend, so the cluster is as healthy as before."""
    cluster = FakeCluster(tmp_path)
    assert "insecure" not in cluster.run("cluster", "status")[1]
    cluster.nodes["n2"]["insecure"] = True
    code, out, _ = cluster.run("cluster", "status", "--color", "always")
    assert code == 0
    line = next(one for one in out.splitlines() if "insecure" in one)
    assert line.startswith("\x1b[31minsecure: ports beyond loopback speak no TLS")
    assert '"insecure": true' in cluster.run("cluster", "status", "-o", "json")[1]
