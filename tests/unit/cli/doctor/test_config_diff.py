"""What a changed cluster file means for nodes that run."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from node.config.config import load
from node.reload import STARTED_FILE, started_with
from tests.fakes.cli_cluster import FakeCluster


def asked(cluster: FakeCluster, *words: str) -> tuple[int, dict[str, Any]]:
    """The document of ``config diff``, and its exit code."""
    code, out, err = cluster.run("config", "diff", *words, "-o", "json")
    assert out, err
    found: dict[str, Any] = json.loads(out)
    return code, found


def running(cluster: FakeCluster, name: str) -> Path:
    """Write what node ``name`` leaves while it runs: this process stands for it."""
    config = load(cluster.directory / "cluster.toml")
    folder = config.node(name).data
    (folder / "twinlog").mkdir(parents=True)
    (folder / STARTED_FILE).write_bytes(started_with(config))
    (folder / "twinlog" / "run.json").write_text(json.dumps({"pid": os.getpid()}))
    return folder


def test_a_running_node_is_compared_with_the_file(tmp_path: Path) -> None:
    """Each setting with what makes it count; nodes of other machines are named."""
    cluster = FakeCluster(tmp_path)
    cluster.run("cluster", "status")
    folder = running(cluster, "n1")
    code, found = asked(cluster)
    assert (code, found["changes"], found["unknown"]) == (0, [], ["n2", "n3"])
    path = tmp_path / "cluster.toml"
    path.write_text(
        path.read_text() + '[storage]\nflush = "sync"\n[log]\nlevel = "debug"\n'
        '[failover]\nmode = "manual"\n',
    )
    code, found = asked(cluster)
    assert code == 1
    effects = {one["setting"]: one["takes_effect"] for one in found["changes"]}
    assert effects["storage.flush"] == "restart"
    assert effects["log.level"] == "reload"
    assert effects["failover.mode"] == "cluster set"
    assert {one["node"] for one in found["changes"]} == {"n1"}
    (folder / "twinlog" / "run.json").write_text(json.dumps({"pid": 1 << 30}))
    code, found = asked(cluster)
    assert (code, found["unknown"]) == (0, ["n1", "n2", "n3"]), "it does not run any more"


def test_two_files_are_compared_for_all_nodes(tmp_path: Path) -> None:
    """A setting of one node is that node's difference."""
    cluster = FakeCluster(tmp_path)
    cluster.run("cluster", "status")
    old = tmp_path / "old.toml"
    text = (tmp_path / "cluster.toml").read_text()
    old.write_text(text)
    (tmp_path / "cluster.toml").write_text(text.replace("clients = 7420", "clients = 7429"))
    code, found = asked(cluster, "--with", str(old))
    assert code == 1
    assert [(one["node"], one["setting"]) for one in found["changes"]] == [
        ("n2", "n2.listen.clients")
    ]
    out = cluster.run("config", "diff", "--with", str(old))[1]
    assert "restart" in out
