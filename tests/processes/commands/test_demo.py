"""The demo keeps its promises, and tidies up however it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
WAIT_SECONDS = 120.0

pytestmark = pytest.mark.processes


def started(directory: Path, *words: str) -> subprocess.Popen[str]:
    """Start the demo with its temporary files in ``directory``."""
    return subprocess.Popen(
        [sys.executable, "-m", "twinlog", "demo", *words],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(directory)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def of_demo(directory: Path) -> list[int]:
    """Process ids that have a file of the demo open on their command line."""
    found: list[int] = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes()
        except OSError:
            continue
        if str(directory).encode() in words:
            found.append(int(path.parent.name))
    return found


def test_the_demo_keeps_its_promises(tmp_path: Path) -> None:
    """Nothing acknowledged is lost or doubled, the logs are equal, and nothing is left behind.

    Its times are the machine's too, which may stand still once: the best of three counts.
    """
    gap, whole = a_demo(tmp_path)
    for _ in range(2):
        if gap >= 10 or whole >= 60:
            again = a_demo(tmp_path)
            gap, whole = min(gap, again[0]), min(whole, again[1])
    assert gap < 10
    assert whole < 60


def a_demo(folder: Path) -> tuple[float, float]:
    """Run the demo; return for how long writes stopped and how long all of it took, in seconds."""
    began = time.monotonic()
    process = started(folder, "-o", "json")
    out, err = process.communicate(timeout=WAIT_SECONDS)
    assert process.returncode == 0, err
    found = json.loads(out.splitlines()[-1])
    assert (found["kind"], found["version"]) == ("Demo", 1)
    assert found["promises_kept"] is True
    assert found["logs_equal"] is True
    assert (found["lost"], found["duplicated"], found["different"]) == (0, 0, 0)
    assert found["read_from_slave"] == found["flights"] == 27_004
    assert found["found"] == found["acknowledged"] > 27_004 + 5_000
    assert found["handled"] == found["acknowledged"]
    assert (found["handled_too_early"], found["group_lag"]) == (0, 0)
    assert found["write_gap_seconds"] > 0
    assert found["cut_bytes"] >= 0
    whole = time.monotonic() - began
    assert not list(folder.glob("twinlog-demo-*"))
    until_gone(folder)
    return float(found["write_gap_seconds"]), whole


def test_ctrl_c_leaves_nothing_behind(tmp_path: Path) -> None:
    """Exit 130 in the middle of a load; processes and files are gone."""
    process = started(tmp_path)
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("2/"):
            break
    assert of_demo(tmp_path)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=WAIT_SECONDS)
    assert process.returncode == 130, err
    assert "nothing is left running" in err
    until_gone(tmp_path)
    assert not list(tmp_path.glob("twinlog-demo-*"))


def test_kill_9_of_the_demo_takes_everything_with_it(tmp_path: Path) -> None:
    """No process survives it."""
    process = started(tmp_path)
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("2/"):
            break
    process.kill()
    process.communicate(timeout=WAIT_SECONDS)
    until_gone(tmp_path)


def until_gone(folder: Path) -> None:
    """Wait until no process of the demo is left; the last may have let go of all and be ending."""
    until = time.monotonic() + WAIT_SECONDS
    while of_demo(folder):
        assert time.monotonic() < until
        time.sleep(0.05)


def test_a_kept_cluster_goes_on(tmp_path: Path) -> None:
    """``--keep`` leaves it running where the table says; ``dev down --wipe`` ends it."""
    rows = tmp_path / "few.csv"
    rows.write_text("carrier,tailnum,delay\n" + "UA,N1,1\n9E,NA,NA\n" * 100, encoding="utf-8")
    process = started(tmp_path, "--keep", "--input", str(rows), "--rate", "500", "-o", "json")
    out, err = process.communicate(timeout=WAIT_SECONDS)
    assert process.returncode == 0, err
    directory = Path(json.loads(out.splitlines()[-1])["directory"])
    run = [sys.executable, "-m", "twinlog"]
    status = subprocess.run(
        [*run, "-c", str(directory / "cluster.toml"), "cluster", "status", "-o", "json"],
        cwd=ROOT, capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    assert json.loads(status.stdout)["health"] == "healthy"
    subprocess.run(
        [*run, "dev", "down", "--data", str(directory), "--wipe", "--yes"],
        cwd=ROOT, capture_output=True, timeout=120, check=True,
    )  # fmt: skip
    assert not directory.exists()
    until_gone(tmp_path)
