"""What every command prints, in every format, word for word.

The expected texts lie in ``tests/golden_cli``; ``TWINLOG_REWRITE_GOLDEN=1`` writes them anew, and
the difference is then read by a person.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from tests.fakes.cli_cluster import FakeClient, FakeCluster, Terminal

GOLDEN = Path(__file__).parents[2] / "golden_cli"

CASES = {
    "cluster-status": ["cluster", "status"],
    "cluster-history": ["cluster", "history"],
    "cluster-switchover": ["cluster", "switchover", "--to", "n2", "--yes"],
    "cluster-switchover-dry-run": ["cluster", "switchover", "--to", "n2", "--dry-run"],
    "cluster-failover": ["cluster", "failover", "--yes"],
    "cluster-failover-dry-run": ["cluster", "failover", "--dry-run"],
    "coordinator-status": ["coordinator", "status"],
    "node-list": ["node", "list"],
    "node-show": ["node", "show", "n2"],
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


@pytest.mark.parametrize("output", FORMATS)
@pytest.mark.parametrize("name", CASES)
def test_output(name: str, output: str, tmp_path: Path) -> None:
    """A command prints exactly this."""
    cluster = FakeCluster(tmp_path, client=FakeClient())
    if name.startswith("cluster-failover"):
        cluster.down = {"n1"}
    code, out, err = cluster.run(*CASES[name], "-o", output, stdin="one\ntwo\n")
    out = re.sub(r'"seconds": [0-9.e-]+', '"seconds": null', out)
    out = re.sub(r" in [0-9.]+ (ms|s)\b", " in TIME", out)
    if output in ("json", "jsonl") and out.strip():
        for line in out.splitlines():
            document = json.loads(line)
            assert document["kind"]
            assert document["version"] == 1
    compare(f"{name}.{output}", shown(code, out, err, tmp_path))


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
    _, _, err = FakeCluster(tmp_path).run("cluster", "status", "--color", "never", terminal=True)
    assert "next: " in err
    _, _, err = FakeCluster(tmp_path).run("cluster", "status")
    assert "next: " not in err


def test_colour_only_on_a_terminal(tmp_path: Path) -> None:
    """A pipe gets no escape sequences, a terminal does, NO_COLOR wins."""
    assert "\x1b" not in FakeCluster(tmp_path).run("cluster", "status")[1]
    assert "\x1b" in FakeCluster(tmp_path).run("cluster", "status", terminal=True)[1]
    plain = FakeCluster(tmp_path).run(
        "cluster", "status", terminal=True, environment={"NO_COLOR": "1"}
    )
    assert "\x1b" not in plain[1]
    assert Terminal().isatty()
