"""What a running node takes from a changed file, and what it only names."""

from __future__ import annotations

import io
import json
from pathlib import Path

from node.config.config import ClusterConfig, load
from node.config.pages import Local, write_local
from node.observe.logs import NodeLog
from node.reload import Reload, differences


def changed(path: Path, *lines: str) -> ClusterConfig:
    """Add lines to the file and read it."""
    path.write_text(path.read_text() + "\n".join(["", *lines, ""]))
    return load(path)


def local(folder: Path) -> Path:
    """A file of a cluster of three."""
    path = folder / "cluster.toml"
    write_local(path, Local(failover="manual", nodes=3, base_port=0))
    return path


async def test_the_level_is_taken_and_the_rest_is_named(tmp_path: Path) -> None:
    """A file with mistakes changes nothing."""
    path, out = local(tmp_path), io.StringIO()
    started = load(path)
    log = NodeLog(style="json", stream=out, node="n1")
    reload = Reload(started, "n1", log, lambda: load(path))
    log("scrubbed", "debug")
    assert out.getvalue() == ""
    changed(path, "[log]", 'level = "debug"')
    await reload.run()
    log("scrubbed", "debug")
    told = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [one["event"] for one in told] == ["reloaded", "scrubbed"]
    assert told[0]["restart"] == []
    path.write_text(path.read_text().replace('level = "debug"', 'level = "loud"'))
    await reload.run()
    told = [json.loads(line) for line in out.getvalue().splitlines()]
    assert told[-1]["event"] == "reload_refused"
    assert "loud" in told[-1]["why"]


def test_settings_of_other_nodes_are_no_difference(tmp_path: Path) -> None:
    """Each node names its own and the shared ones."""
    path = local(tmp_path)
    before = load(path)
    text = path.read_text().replace("priority = 90", "priority = 91")
    path.write_text(text)
    after = load(path)
    assert differences(before, before, "n1") == []
    assert differences(before, after, "n1") == []
    assert differences(before, after, "n2") == ["n2.priority"]
