"""A cluster file whose addresses belong to another cluster: no command changes anything there."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fixtures.processes import ROOT, SECONDS, Processes

pytestmark = pytest.mark.processes


def call(config: Path, words: str) -> tuple[int, str, str]:
    """Run a command; return exit code, stdout and stderr."""
    command = [sys.executable, "-m", "twinlog", "-c", str(config), *words.split()]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=SECONDS, check=False, input="x"
    )
    return done.returncode, done.stdout, done.stderr


def test_commands_write_to_no_strangers_cluster(tmp_path: Path) -> None:
    """They name the cluster that answers and the file; status and health say the same."""
    theirs = Processes(tmp_path, nodes=1)
    try:
        theirs.start_all()
        assert call(theirs.path, "topic create orders")[0] == 0
        ours = tmp_path / "ours.toml"
        name = theirs.config.name
        ours.write_text(theirs.path.read_text().replace(f'name = "{name}"', 'name = "ours"', 1))
        for words in (
            "topic create mine",
            "message send orders --body hello",
            "cluster set ack durable --yes",
            "group create billing",
        ):
            code, out, err = call(ours, words)
            said = out + err
            assert code != 0, f"{words}: {said}"
            assert name in said, f"{words}: {said}"
        code, _, err = call(ours, "message send orders --body hello")
        assert code == 78
        assert f"node n1 of cluster {name} answers, not cluster ours" in err
        assert str(ours) in err
        code, out, err = call(ours, "cluster health")
        assert code == 2, out + err
        assert call(ours, "cluster status")[1].find("healthy") < 0
        code, out, _ = call(theirs.path, "topic list -o json")
        topics = json.loads(out)
        assert "mine" not in json.dumps(topics)
        code, out, _ = call(theirs.path, "message read orders -o json")
        assert "hello" not in out
    finally:
        theirs.close()
