"""A newcomer's path with real processes: start, send, read, kill the master, see it recover.

Everything goes through the command line, as a user would type it.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.clock import Clock, use
from twinlog import Client
from twinlog.errors import OutcomeUnknown
from twinlog.producer.blocking import Producer

ROOT = Path(__file__).parents[3]
WAIT_SECONDS = 120.0

pytestmark = pytest.mark.processes


class Shell:
    """Calls twinlog in one directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        config = str(directory / "data" / "cluster.toml")
        self.environment = {**os.environ, "TWINLOG_CONFIG": config, "PYTHONPATH": str(ROOT)}
        self.environment.pop("CI", None)
        self.environment["TWINLOG_TIMEOUT"] = "100s"  # a machine that stands still is no outcome

    def run(self, words: str, *, stdin: str = "", expect: int = 0) -> str:
        """Call twinlog and return its stdout; the exit code must be the one expected."""
        code, out, err = self.run_any(words, stdin=stdin)
        assert code == expect, f"{words}: {out}\n{err}"
        return out

    def run_any(self, words: str, *, stdin: str = "") -> tuple[int, str, str]:
        """Call twinlog; return exit code, stdout and stderr."""
        done = subprocess.run(
            [sys.executable, "-m", "twinlog", *words.split()],
            cwd=self.directory,
            env=self.environment,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=WAIT_SECONDS,
            check=False,
        )
        assert "Traceback" not in done.stderr
        return done.returncode, done.stdout, done.stderr

    def document(self, words: str) -> dict[str, object]:
        """Call twinlog with ``-o json``."""
        found = json.loads(self.run(f"{words} -o json"))
        assert isinstance(found, dict)
        return found

    def start(self, words: str, *, stdin: int = subprocess.DEVNULL) -> subprocess.Popen[str]:
        """Start twinlog and do not wait for it."""
        return subprocess.Popen(
            [sys.executable, "-m", "twinlog", *words.split()],
            cwd=self.directory,
            env=self.environment,
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )


def in_background(folder: Path, **settings: str) -> Iterator[Shell]:
    """A development cluster on ports of the system's choice; it is gone at the end."""
    found = Shell(folder)
    found.environment |= settings
    found.run("dev up --background --base-port 0")
    wait_healthy(found)
    yield found
    found.run("dev down --wipe --yes")
    assert not (folder / "data").exists()


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    """A cluster as a newcomer starts it."""
    yield from in_background(tmp_path)


@pytest.fixture
def lasting(tmp_path: Path) -> Iterator[Shell]:
    """A cluster whose slaves stay in the in-sync set however long they are silent."""
    yield from in_background(
        tmp_path,
        TWINLOG_REPLICATION_IN_SYNC_LAG_MAX="600 s",
        TWINLOG_REPLICATION_LINK_TIMEOUT="600 s",
    )


def wait_healthy(shell: Shell) -> dict[str, object]:
    """Wait until the cluster says that it is well."""
    until = time.monotonic() + WAIT_SECONDS
    while True:
        code, out, _ = shell.run_any("cluster status -o json")
        found: dict[str, object] = json.loads(out) if code == 0 else {}
        if found.get("health") == "healthy":
            return found
        assert time.monotonic() < until, found
        time.sleep(0.1)


def test_a_newcomers_path(shell: Shell) -> None:
    """Topic, message, master killed, failover, message still there, old master back in sync."""
    assert "created" in shell.run("topic create orders --queues 4")
    assert "exists" in shell.run("topic create orders --queues 4")
    shell.run("topic create orders --queues 5", expect=1)
    sent = shell.document("message send orders --body hello --key 42 --tag paid")
    assert str(sent["address"]).startswith("orders/")
    lines = shell.run("message send orders --lines -o name", stdin="a\nb\nc\n").split()
    assert len(lines) == 3
    assert sorted(shell.run("message read orders --format %v%n").split()) == [
        "a",
        "b",
        "c",
        "hello",
    ]
    assert shell.run("message read orders --key 42 --format %g%n --from slave") == "paid\n"
    got = shell.document(f"message get {sent['address']}")
    assert (got["body"], got["key"]) == ("hello", "42")
    assert shell.document(f"message get log@{got['log_offset']}")["body"] == "hello"
    assert '"messages": 4' in shell.run("topic list -o json")

    shell.run("cluster set failover manual --yes")
    before = shell.document("cluster status")
    master = str(before["master"])
    assert "killed" in shell.run(f"dev kill {master}")
    after = shell.document("cluster failover --yes")
    assert after["master"] != master
    assert after["epoch"] == int(str(before["epoch"])) + 1
    assert shell.run("message send orders --body after -o name").startswith("orders/")
    assert len(shell.run("message read orders --format %v%n").split()) == 5

    assert "started" in shell.run(f"dev start {master}")
    healthy = wait_healthy(shell)
    assert healthy["master"] == after["master"]
    assert shell.document("cluster switchover --yes")["done"] is True
    history = shell.run("cluster history -o tsv").splitlines()
    assert [line.split("\t")[4] for line in history[1:]][-2:] == ["failover", "switchover"]


def follow_the_hints(shell: Shell) -> list[str]:
    """Do what ``cluster health`` says until it says that the cluster is healthy; what was done."""
    done: list[str] = []
    until = time.monotonic() + WAIT_SECONDS
    while True:
        code, out, _ = shell.run_any("cluster health -o json")
        found: dict[str, Any] = json.loads(out) if out else {}
        if code == 0:
            return done
        assert time.monotonic() < until, (found, done)
        for problem in found.get("problems", []):
            words = problem["command"].removeprefix("twinlog ")
            if not words.endswith(("--watch", "--dry-run")) and " show " not in words:
                done.append(words)
                shell.run_any(words + (" --yes" if words.startswith("cluster") else ""))
                break


def test_a_bad_day_is_left_by_following_the_hints(shell: Shell) -> None:
    """Master, slave and coordinator are killed, one after the other and at once."""
    shell.run("cluster set failover manual --yes")
    shell.run("topic create orders")
    shell.run("message send orders --body first")
    master = str(wait_healthy(shell)["master"])
    shell.run(f"dev kill {master}")
    shell.run("cluster health", expect=2)
    err = shell.run_any("message send orders --body x --timeout 5s")[2]
    assert "local has no master" in err
    assert "twinlog cluster failover" in err
    assert follow_the_hints(shell)[:2] == ["cluster failover", f"dev start {master}"]
    shell.run("dev kill coordinator")
    shell.run("cluster health", expect=1)
    assert follow_the_hints(shell) == ["dev start coordinator"]
    for name in ("n1", "n2", "n3", "coordinator"):
        shell.run(f"dev kill {name}")
    code, out, err = shell.run_any("cluster health")
    assert (code, out) == (2, "")
    assert "no node of local answers" in err
    for name in ("coordinator", "n1", "n2", "n3"):
        shell.run(f"dev start {name}")
    follow_the_hints(shell)
    assert shell.run("message read orders --format %v%n").split()[:1] == ["first"]


def test_what_nobody_confirmed_is_cut(
    lasting: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The send ends as unknown; after the failover its bytes are gone, and the history says so."""
    shell = lasting
    shell.run("cluster set failover manual --yes")
    shell.run("topic create orders --queues 1")
    shell.run("message send orders --body kept")
    paused = [pid_of(tmp_path, name) for name in ("n2", "n3")]
    nodes = shell.document("cluster status")["nodes"]
    assert isinstance(nodes, list)
    endpoints = ",".join(str(node["address"]) for node in nodes)
    for pid in paused:
        os.kill(pid, signal.SIGSTOP)
    try:
        with Client(endpoints) as client:
            # What the sockets' buffers take reaches the slaves all the same: more than they hold.
            for _ in range(buffered_most() // 3_000_000 + 1):
                client.send("orders", b"x" * 3_000_000, acknowledge="written")
            late_from_now_on(monkeypatch)
            with pytest.raises(OutcomeUnknown):
                client.send("orders", b"lost", key="k", timeout=60.0)
        shell.run("dev kill n1")
    finally:
        for pid in paused:
            os.kill(pid, signal.SIGCONT)
    shell.run("cluster failover --yes")
    shell.run("dev start n1")
    wait_healthy(shell)
    last = shell.run("cluster history -o jsonl").splitlines()[-1]
    assert json.loads(last)["lost_bytes"] > 3_000_000
    assert shell.run("message read orders --key k -o name") == ""
    assert shell.run("message read orders -n 1 --format %v --from n1") == "kept"


def buffered_most() -> int:
    """Bytes that a connection may hold ahead of a process that takes none, as the system is set."""
    places = [Path(f"/proc/sys/net/ipv4/tcp_{name}mem") for name in "rw"]
    return sum(int(place.read_text().split()[2]) for place in places if place.exists()) or 10 << 20


def late_from_now_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a minute pass after every section that is sent, so that its deadline is over."""
    clock, send = Clock(), Producer._send

    def sent(producer: Producer, *request: Any) -> None:
        send(producer, *request)
        clock.jump(60.0)

    monkeypatch.setattr(Producer, "_send", sent)
    use(clock, monkeypatch)


def pid_of(directory: Path, name: str) -> int:
    """The process id of a node."""
    run = json.loads((directory / "data" / name / "twinlog" / "run.json").read_text("utf-8"))
    assert isinstance(run["pid"], int)
    return run["pid"]


def test_processes_by_hand(tmp_path: Path) -> None:
    """``config init``, ``coordinator start``, ``node start``; Ctrl-C is 130, TERM is 0."""
    shell = Shell(tmp_path)
    shell.environment["TWINLOG_CONFIG"] = str(tmp_path / "cluster.toml")
    shell.run("config init --local --nodes 1 --base-port 0")
    shell.run("config check")
    with shell.start("coordinator start") as coordinator, shell.start("node start n1") as node:
        try:
            end_by_signals(shell, coordinator, node, tmp_path)
        finally:
            node.kill()
            coordinator.kill()


def commands_in(text: str) -> list[str]:
    """What a line of commands names, without the program's name."""
    return [word.strip().removeprefix("twinlog ") for word in text.split(",")]


def test_a_written_file_is_started_by_the_commands_that_it_names(tmp_path: Path) -> None:
    """Three nodes: ``config init`` says how, and `dev up` runs the same file and the same data.

    First each process by hand, then all at once; a message of the first cluster is read in the
    second one. ``dev down --wipe`` deletes the data, and not the file.
    """
    shell = Shell(tmp_path)
    del shell.environment["TWINLOG_CONFIG"]
    said = shell.run("config init --base-port 0")
    by_hand = re.search(r"terminal of its own: (.+)", said)
    following = re.search(r"all of it: twinlog (.+)", said)
    assert by_hand and following, said
    words = commands_in(by_hand[1])
    assert len(words) == 4
    running = [shell.start(word) for word in words]
    try:
        wait_healthy(shell)
        shell.run("topic create orders")
        shell.run("message send orders --body kept")
    finally:
        for process in reversed(running):
            process.terminate()
        for process in reversed(running):
            process.communicate(timeout=WAIT_SECONDS)
    assert [process.returncode for process in running] == [0] * 4
    shell.run(following[1])
    try:
        wait_healthy(shell)
        assert shell.run("message read orders --format %v%n") == "kept\n"
        assert (tmp_path / "dev" / "state.json").exists()
    finally:
        shell.run("-c cluster.toml dev down --wipe --yes")
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["cluster.toml"]


def test_a_file_with_other_machines_is_refused(tmp_path: Path) -> None:
    """``dev up`` starts processes of this machine only, and names what starts the others."""
    shell = Shell(tmp_path)
    shell.run("config init mine/cluster.toml --base-port 0")
    path = tmp_path / "mine" / "cluster.toml"
    text = path.read_text().replace('address = "127.0.0.1"', 'address = "10.0.0.1"', 1)
    path.write_text(text.replace("clients = 0", "clients = 0\ninsecure = true", 1))
    code, _, err = shell.run_any("-c mine/cluster.toml dev up --background")
    assert code == 64
    assert "n1 is on 10.0.0.1" in err
    path.rename(tmp_path / "mine" / "other.toml")
    code, _, err = shell.run_any("-c mine/other.toml dev up --background")
    assert code == 64
    assert "--data DIR" in err


def end_by_signals(
    shell: Shell,
    coordinator: subprocess.Popen[str],
    node: subprocess.Popen[str],
    tmp_path: Path,
) -> None:
    """Ctrl-C ends the node, TERM the coordinator, both in order."""
    wait_healthy(shell)  # the coordinator answers `cluster status` before the node is even there
    node.send_signal(signal.SIGINT)
    _, err = node.communicate(timeout=WAIT_SECONDS)
    assert node.returncode == 130, err
    assert "nothing is left running" in err, err
    assert not (tmp_path / "data" / "n1" / "twinlog" / "run.json").exists()
    coordinator.send_signal(signal.SIGTERM)
    _, err = coordinator.communicate(timeout=WAIT_SECONDS)
    assert coordinator.returncode == 0, err


def test_examples_run(shell: Shell) -> None:
    """What ``examples/`` shows works as it stands."""
    nodes = shell.document("cluster status")["nodes"]
    assert isinstance(nodes, list)
    endpoints = ",".join(str(node["address"]) for node in nodes)
    for name, words in (("send_and_read", []), ("producer", ["500"]), ("follow", ["flights", "3"])):
        done = subprocess.run(
            [sys.executable, str(ROOT / "examples" / f"{name}.py"), *words, endpoints],
            cwd=shell.directory,
            env=shell.environment,
            capture_output=True,
            text=True,
            timeout=WAIT_SECONDS,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout and "<" not in done.stdout, "values, not objects"


def test_bench_says_what_it_did(shell: Shell) -> None:
    """Rates, latencies, CPU and settings, in one document each."""
    for words in ("send --size 100", "send --single", "replicate", "read --decode", "read"):
        found = measured(shell, words)
        assert found["kind"] == "Bench"
        assert float(str(found["records_per_second"])) > 0
        assert {"latency_seconds", "cpu_seconds_per_million", "settings"} <= found.keys()


def measured(shell: Shell, words: str) -> dict[str, object]:
    """Measure; once more where the machine stood still for all of the time that counts."""
    for _ in range(5):
        found = shell.document(f"bench {words} --duration 300ms --warmup 100ms")
        if found.get("records_per_second"):
            break
    return found


def test_following_ends_with_ctrl_c(shell: Shell) -> None:
    """Messages that come are shown as they come; Ctrl-C is exit 130."""
    shell.run("topic create orders --queues 1")
    shell.run("message send orders --body one")
    following = shell.start("message tail orders --format %v%n")
    assert following.stdout is not None
    assert following.stdout.readline() == "one\n"
    shell.run("message send orders --body two")
    assert following.stdout.readline() == "two\n"
    following.send_signal(signal.SIGINT)
    _, err = following.communicate(timeout=WAIT_SECONDS)
    assert following.returncode == 130
    assert "left nothing running" in err


def until_at_work(shell: Shell, process: subprocess.Popen[str]) -> None:
    """Wait until a process talks to a node: it has a connection to one of the cluster's ports."""
    import psutil

    until = time.monotonic() + WAIT_SECONDS
    while not any(found.status == "ESTABLISHED" for found in psutil.Process(process.pid)
                  .net_connections(kind="tcp")):  # fmt: skip
        assert process.poll() is None
        assert time.monotonic() < until
        time.sleep(0.02)


def test_ctrl_c_in_every_long_command(shell: Shell) -> None:
    """Exit 130, no trace, and a word about what is left; the cluster does not mind."""
    shell.run("topic create orders --queues 1")
    shell.run("topic create bench")
    shell.run("message send bench --body x --queue 0")  # or there is nothing to read
    for words in (
        "bench send --duration 60s",
        "bench read --duration 60s",
        "message read orders --follow",
        "message send orders --lines",
    ):
        process = shell.start(words, stdin=subprocess.PIPE)
        assert process.stdin is not None
        process.stdin.write("one\n")
        process.stdin.flush()
        until_at_work(shell, process)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=WAIT_SECONDS)
        assert process.returncode == 130, f"{words}: {err}"
        assert "interrupted: stopped by Ctrl-C" in err
        assert "Traceback" not in err
    assert wait_healthy(shell)["master"] == "n1"


def test_a_cluster_in_the_foreground(tmp_path: Path) -> None:
    """Each line carries the name of its process; Ctrl-C stops all of them and ends with 130."""
    shell = Shell(tmp_path)
    process = shell.start("dev up -n 1 --base-port 0")
    assert process.stderr is not None
    # The node's own word may come behind ours: its run file, which says the same, is written first.
    wanted = {"ready · ", r"n1 +\| ready in"}
    lines: list[str] = []
    for line in process.stderr:
        lines.append(line)
        wanted = {each for each in wanted if not re.match(each, line)}
        if not wanted:
            break
    assert not wanted, lines
    wait_healthy(shell)  # it serves, but becomes master only with what the coordinator says
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=WAIT_SECONDS)
    assert process.returncode == 130
    assert "nothing is left running" in err, err
    shell.run("dev status", expect=1)
    shell.run("cluster status", expect=69)


def test_a_taken_port_is_told(shell: Shell, tmp_path: Path) -> None:
    """The second cluster on the same port says which port, and leaves nothing running."""
    nodes = shell.document("cluster status")["nodes"]
    assert isinstance(nodes, list)
    port = str(nodes[0]["address"]).rpartition(":")[2]
    text = (tmp_path / "data" / "cluster.toml").read_text(encoding="utf-8")
    other = tmp_path / "other"
    other.mkdir()
    fresh = text.replace("clients = 0", f"clients = {port}", 1)
    fresh = re.sub(r"endpoints = .*", 'endpoints = ["127.0.0.1:0"]', fresh)
    (other / "cluster.toml").write_text(fresh, encoding="utf-8")
    done = shell.start("dev up --data other --background")
    _, err = done.communicate(timeout=WAIT_SECONDS)
    assert done.returncode == 69
    assert port in err
    shell.run("dev status --data other", expect=1)
