"""What every command prints, in every format, word for word.

``tests/golden_cli`` has one file per answer, with a section per format; a format that prints the
same as ``table`` says so. After a wanted change::

    TWINLOG_REWRITE_GOLDEN=1 uv run pytest tests/unit/cli/test_golden.py

writes the files again, and a person reads the difference before it is committed.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from replication.register.group_state import GroupState, Registration
from tests.fakes.cli_cluster import FakeClient, FakeCluster, Terminal
from twinlog.wire.frames import Type

GOLDEN = Path(__file__).parents[2] / "golden_cli"

CASES = {
    "cluster-status": ["cluster", "status"],
    "cluster-top": ["cluster", "top"],
    "cluster-history": ["cluster", "history"],
    "cluster-switchover": ["cluster", "switchover", "--to", "n2", "--yes"],
    "cluster-switchover-dry-run": ["cluster", "switchover", "--to", "n2", "--dry-run"],
    "cluster-failover": ["cluster", "failover", "--yes"],
    "cluster-failover-dry-run": ["cluster", "failover", "--dry-run"],
    "cluster-add": ["cluster", "add", "n4", "--yes"],
    "cluster-add-dry-run": ["cluster", "add", "n4", "--priority", "5", "--dry-run"],
    "cluster-add-learner": ["cluster", "add", "n4", "--learner", "--yes"],
    "cluster-add-learner-again": ["cluster", "add", "n3", "--learner"],
    "cluster-promote": ["cluster", "promote", "n3", "--priority", "5", "--yes"],
    "cluster-promote-dry-run": ["cluster", "promote", "n3", "--dry-run"],
    "cluster-promote-member": ["cluster", "promote", "n2", "--yes"],
    "cluster-promote-unknown": ["cluster", "promote", "n9", "--yes"],
    "coordinator-status-learner": ["coordinator", "status"],
    "cluster-remove": ["cluster", "remove", "n3", "--yes"],
    "cluster-set": ["cluster", "set", "ack", "durable", "--yes"],
    "cluster-set-level": ["cluster", "set", "level", "2", "--yes"],
    "version-check": ["version", "--check"],
    "version-check-old": ["version", "--check"],
    "cluster-set-unknown": ["cluster", "set", "flush", "sync"],
    "coordinator-status": ["coordinator", "status"],
    "coordinator-vouch": ["coordinator", "vouch", "n2", "--why", "burned", "--yes"],
    "coordinator-vouch-dry-run": ["coordinator", "vouch", "n2", "--dry-run"],
    "coordinator-clear-alarm": ["coordinator", "clear-alarm", "--yes"],
    "coordinator-clear-alarm-dry-run": ["coordinator", "clear-alarm", "--dry-run"],
    "node-list": ["node", "list"],
    "node-show": ["node", "show", "n2"],
    "node-scrub": ["node", "scrub", "n2"],
    "node-stop": ["node", "stop", "n3"],
    "config-check": ["config", "check"],
    "config-show": ["config", "show", "--changed"],
    "help-exit": ["help", "exit"],
    "topic-list": ["topic", "list"],
    "topic-list-all": ["topic", "list", "--all"],
    "topic-show": ["topic", "show", "orders"],
    "topic-create": ["topic", "create", "new", "--queues", "2"],
    "topic-create-again": ["topic", "create", "orders", "--queues", "4"],
    "topic-create-dry-run": ["topic", "create", "new", "--dry-run"],
    "topic-alter": [
        *("topic", "alter", "orders", "--queues", "8", "--bytes-per-second", "5MiB", "--yes"),
    ],
    "topic-alter-dry-run": [
        *("topic", "alter", "orders", "--perm", "w", "--records-per-second", "none", "--dry-run"),
    ],
    "topic-delete": ["topic", "delete", "orders", "--consumed", "--yes"],
    "topic-delete-dry-run": ["topic", "delete", "orders", "--consumed", "--dry-run"],
    "topic-delete-consumed": ["topic", "delete", "orders", "--yes"],
    "topic-missing": ["topic", "show", "ordres"],
    "message-send": ["message", "send", "orders", "--body", "hello", "--key", "42"],
    "message-send-lines": ["message", "send", "orders", "--lines", "--tag", "x"],
    "message-read": ["message", "read", "orders"],
    "message-read-key": ["message", "read", "orders", "--key", "k1", "--range", "-5:"],
    "message-get": ["message", "get", "orders/0@1"],
    "message-find": ["message", "find", "orders", "--key", "k1", "--since=-1h"],
    "message-find-none": ["message", "find", "orders", "--key", "none"],
    "message-find-id": ["message", "find", "orders", "--id", "7F00000100001CF200000000000010C8"],
    "message-find-no-id": ["message", "find", "orders", "--id", "U-1"],
    "message-find-many": ["message", "find", "orders", "--key", "many"],
    "message-find-both": ["message", "find", "orders", "--key", "a", "--id", "b"],
    "message-find-time": ["message", "find", "orders", "--key", "a", "--until", "soon"],
    "message-trace": ["message", "trace", "orders/0@1"],
    "message-trace-group": ["message", "trace", "orders/0@1", "--group", "audit"],
    "timer-list": ["timer", "list"],
    "timer-list-topic": ["timer", "list", "orders", "-n", "1"],
    "timer-list-by": ["timer", "list", "--by", "minute"],
    "timer-list-topic-by": ["timer", "list", "orders", "--by", "second"],
    "timer-list-since": ["timer", "list", "--since", "soon"],
    "timer-show": ["timer", "show", "log@9300"],
    "timer-show-gone": ["timer", "show", "log@9900"],
    "timer-show-other": ["timer", "show", "orders/0@1"],
    "group-list": ["group", "list"],
    "group-show": ["group", "show", "billing"],
    "group-missing": ["group", "show", "biling"],
    "group-members": ["group", "members", "billing"],
    "group-history": ["group", "history", "billing", "--since=-1h"],
    "group-history-topic": ["group", "history", "billing", "--topic", "orders", "-n", "2"],
    "group-history-missing": ["group", "history", "biling"],
    "group-history-time": ["group", "history", "billing", "--since", "soon"],
    "group-wait": ["group", "wait", "billing", "--lag", "5"],
    "group-create": ["group", "create", "new", "--start", "start", "--retry", "1s,1m"],
    "group-create-differs": ["group", "create", "billing", "--attempts", "3"],
    "group-create-ordered": ["group", "create", "new", "--mode", "ordered"],
    "group-alter-dry-run": ["group", "alter", "billing", "--attempts", "3", "--dry-run"],
    "group-delete": ["group", "delete", "billing", "--yes"],
    "group-reset": ["group", "reset", "billing", "--topic", "orders", "--to", "end", "--yes"],
    "group-reset-dry-run": [
        *("group", "reset", "billing", "--topic", "orders", "--to", "start", "--dry-run"),
    ],
    "group-skip": ["group", "skip", "billing", "--topic", "orders", "--queue", "0", "--yes"],
    "transaction-list": ["transaction", "list"],
    "transaction-list-older": ["transaction", "list", "--older", "10m"],
    "transaction-list-wrong": ["transaction", "list", "--older", "long"],
    "transaction-show": ["transaction", "show", "15"],
    "transaction-commit": ["transaction", "commit", "12", "--yes"],
    "transaction-rollback": ["transaction", "rollback", "shop/7f3a", "--yes"],
    "transaction-missing": ["transaction", "rollback", "13", "--yes"],
    "dlq-list": ["dlq", "list"],
    "dlq-none": ["dlq", "show", "billing"],
    "dev-status": ["dev", "status", "--data", "/nowhere"],
    "dev-down": ["dev", "down", "--data", "/nowhere"],
}
FORMATS = ["table", "wide", "json", "jsonl", "tsv", "name"]


def compare(name: str, text: str) -> None:
    """Compare with the golden file, or write it when asked to."""
    path = GOLDEN / f"{name}.txt"
    if os.environ.get("TWINLOG_REWRITE_GOLDEN"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert path.exists(), f"no golden file {path.name}: run with TWINLOG_REWRITE_GOLDEN=1"
    assert text == path.read_text(encoding="utf-8")


def shown(code: int, out: str, err: str, directory: Path) -> str:
    """One call as the golden files write it; what differs between runs is taken out."""
    text = f"exit {code}\n--- stdout\n{out}--- stderr\n{err}".replace(str(directory), "DIR")
    lines = ["Done in S." if line.startswith("Done in ") else line for line in text.split("\n")]
    return "\n".join(lines)


@pytest.mark.parametrize("name", CASES)
def test_output(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command prints exactly this, in each format."""
    monkeypatch.setattr("cli.cluster.top.SPAN_SECONDS", 0.0)
    sections: list[str] = []
    table = ""
    for output in FORMATS:
        folder = tmp_path / output
        folder.mkdir()
        text = printed(name, output, folder)
        table = table or text
        same = output != "table" and text == table
        sections.append(f"=== {output}\n{'as table' if same else text}".rstrip("\n") + "\n")
    compare(name, "\n".join(sections))


def printed(name: str, output: str, folder: Path) -> str:
    """One call in one format."""
    cluster = FakeCluster(folder, client=FakeClient())
    if name.startswith("cluster-failover"):
        cluster.down = {"n1"}
    if name.startswith("cluster-promote") or "-learner" in name:
        assert cluster.state is not None
        cluster.state = {**cluster.state, "replicas": ["n1", "n2"], "learners": ["n3"]}
    if name in ("version-check-old", "cluster-set-level"):
        assert cluster.state is not None
        cluster.state = {**cluster.state, "level": 2 if name.startswith("version") else 1}
    if name.startswith("coordinator-vouch"):
        cluster.down, cluster.waiting = {"n2"}, ["n2"]
    if name.startswith("coordinator-clear-alarm"):
        cluster.alarm = "n2 has seen revision 99, which this register has not"
    code, out, err = cluster.run(*CASES[name], "-o", output, stdin="one\ntwo\n")
    out = re.sub(r'"seconds": [0-9.e-]+', '"seconds": null', out)
    out = re.sub(r" in [0-9.]+ (ms|s)\b", " in TIME", out)
    if output in ("json", "jsonl") and out.strip():
        documents = [json.loads(line) for line in out.splitlines()]
        assert all(one["kind"] and one["version"] == 1 for one in documents)
        if output == "json":  # one line each; here a line for each value, for the reader's sake
            assert out.splitlines() == [json.dumps(one, ensure_ascii=False) for one in documents]
            out = "".join(json.dumps(one, ensure_ascii=False, indent=1) + "\n" for one in documents)
    return shown(code, out, err, folder)


def test_a_node_that_is_away_stays_in_the_list(tmp_path: Path) -> None:
    """It shows as unreachable with `?`, and machines get the reason."""
    cluster = FakeCluster(tmp_path, down={"n3"})
    code, out, err = cluster.run("cluster", "status")
    compare("cluster-status-away", shown(code, out, err, tmp_path))
    document = json.loads(cluster.run("cluster", "status", "-o", "json")[1])
    away = document["nodes"][2]
    assert (away["name"], away["state"], away["end_offset"]) == ("n3", "unreachable", None)
    assert "refused" in away["reason"]


def test_without_the_coordinator_traffic_is_still_seen(tmp_path: Path) -> None:
    """The picture comes from the nodes; the line below says what does not work."""
    cluster = FakeCluster(tmp_path, down={"coordinator"})
    code, out, err = cluster.run("cluster", "status")
    compare("cluster-status-no-coordinator", shown(code, out, err, tmp_path))


def test_a_terminal_gets_a_next_step_and_relative_times(tmp_path: Path) -> None:
    """Hints what to do next appear on a terminal only."""
    _, out, err = FakeCluster(tmp_path).run("cluster", "history", "--color", "never", terminal=True)
    assert " ago" in out or "20" in out
    cluster = FakeCluster(tmp_path, client=FakeClient())
    _, _, err = cluster.run("topic", "show", "orders", "--color", "never", terminal=True)
    assert "next: " in err
    assert "next: " not in cluster.run("topic", "show", "orders")[2]


def test_colour_only_on_a_terminal(tmp_path: Path) -> None:
    """A pipe gets no escape sequences, a terminal does, NO_COLOR wins."""
    assert "\x1b" not in FakeCluster(tmp_path).run("cluster", "status")[1]
    assert "\x1b" in FakeCluster(tmp_path).run("cluster", "status", terminal=True)[1]
    plain = FakeCluster(tmp_path).run(
        "cluster", "status", terminal=True, environment={"NO_COLOR": "1"}
    )
    assert "\x1b" not in plain[1]
    assert Terminal().isatty()


def vacant(ends: dict[str, list[int]]) -> dict[str, object]:
    """A group whose members all lost power: no master, and the in-sync set is empty."""
    state = GroupState(
        register_id="r", revision=12, tag=5, epoch=7, replicas=("n1", "n2", "n3"), vacant=11,
        reg={name: Registration(4, name, "s", end=100) for name in ("n1", "n2", "n3")}, min_isr=2,
        seeded=True,
    )  # fmt: skip
    return state.to_json() | {"ends": ends}


def test_nobody_has_everything_and_all_have_reported(tmp_path: Path) -> None:
    """The plan names the node that has the most, and what may be lost."""
    ends = {"n1": [4, 7, 9437184], "n2": [4, 7, 10485760], "n3": [4, 6, 99999999]}
    cluster = FakeCluster(tmp_path, state=vacant(ends))
    code, out, err = cluster.run("cluster", "failover", "--dry-run")
    assert code == 0
    compare("cluster-failover-vacant", shown(code, out, err, tmp_path))
    code, out, err = cluster.run("cluster", "failover", "--yes")
    assert code == 0
    assert cluster.state is not None
    assert cluster.state["leader"] == "n2"
    order = next(fields["op"] for _, kind, fields in cluster.asked if kind is Type.CO_CALL)
    assert (order["op"], order["to"], order["epoch"]) == ("failover", "n2", 7)


def test_nobody_has_everything_and_one_is_missing(tmp_path: Path) -> None:
    """The refusal names who is missing, and the command that goes on without it."""
    ends = {"n1": [4, 7, 9437184], "n2": [4, 7, 10485760]}
    cluster = FakeCluster(tmp_path, state=vacant(ends), down={"n3"})
    code, out, err = cluster.run("cluster", "failover", "--yes")
    assert code == 69
    compare("cluster-failover-missing", shown(code, out, err, tmp_path))
    code, out, err = cluster.run("cluster", "failover", "--unclean", "n2", "--dry-run")
    assert code == 0
    compare("cluster-failover-unclean", shown(code, out, err, tmp_path))
    code, out, err = cluster.run("cluster", "failover", "--unclean", "n2", "--yes")
    assert code == 0
    order = next(fields["op"] for _, kind, fields in cluster.asked if kind is Type.CO_CALL)
    assert (order["op"], order["to"]) == ("unclean-elect", "n2")


def test_an_unclean_failover_to_a_whole_node_is_refused(tmp_path: Path) -> None:
    """Nothing need be lost, so nothing is."""
    code, _, err = FakeCluster(tmp_path).run("cluster", "failover", "--unclean", "n2", "--yes")
    assert code == 69
    assert "cluster failover --to n2" in err
