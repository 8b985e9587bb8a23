"""A cluster of another release is upgraded node by node under load, and back: nothing is lost.

    python -m tests.readme.upgrade COMMIT

builds the wheel of a commit, as ``make upgrade FROM=COMMIT`` does, installs it apart, and rolls a
cluster of three nodes and a coordinator from it to this tree, back, and to this tree again, as
``docs/deploy.md`` says. `roll` is what the test does with a wheel that it has already.

Not here: the rule (R74, `tests.sim.stories.tales.a_group_is_upgraded`).
"""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
import threading
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.fixtures.processes import ROOT, SECONDS, Processes
from twinlog import Client
from twinlog.errors import TwinlogError

TOPIC = "upgraded"
NODES = ("n1", "n2", "n3")


class Mixed(Processes):
    """A cluster whose processes are of two releases.

    Attributes:
        old: The command of the other release.
        upgraded: Processes that are of this tree.
    """

    def __init__(self, folder: Path, old: list[str]) -> None:
        super().__init__(folder)
        self.old = old
        self.upgraded: set[str] = set()

    def command(self, name: str) -> list[str]:
        """See `Processes`; of the release that the process has now."""
        found = super().command(name)
        return found if name in self.upgraded else [*self.old, *found[3:]]

    def change(self, name: str) -> None:
        """Stop a process in order, start it as the other release, and wait until all is well."""
        assert self.stop(name) == 0, self.tail(name)
        self.upgraded ^= {name}
        self.start(name)
        self.settled(len(NODES))
        self.until(lambda: self.say("cluster", "health")[0] == 0, f"healthy after {name}")

    def say(self, *words: str, old: bool = False) -> tuple[int, str]:
        """Run a command of this tree, or of the other release; its exit code and output."""
        program = self.old if old else [sys.executable, "-m", "twinlog"]
        done = subprocess.run(
            [*program, *words, "-c", str(self.path), "-o", "json"],
            cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=SECONDS, check=False,
        )  # fmt: skip
        return done.returncode, done.stdout + done.stderr


@dataclass
class Load:
    """Sends numbers until its block ends; what was acknowledged must be found."""

    endpoints: list[str]
    acknowledged: set[int] = field(default_factory=set[int])
    sent: int = 0
    error: BaseException | None = None
    _over: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> Load:
        self._thread = threading.Thread(target=self._run, name="load", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(SECONDS)

    def _run(self) -> None:
        try:
            with Client(self.endpoints, timeout=SECONDS) as client:
                while not self._over.wait(0.005):
                    number, self.sent = self.sent, self.sent + 1
                    with suppress(TwinlogError):
                        client.send(TOPIC, str(number).encode())
                        self.acknowledged.add(number)
        except BaseException as error:
            self.error = error


def verdict(cluster: Mixed) -> tuple[int, int, int]:
    """Return exit code, level and usable level of ``twinlog version --check``."""
    code, text = cluster.say("version", "--check")
    found = json.loads(text)
    return code, found["level"], found["usable_level"]


def roll(old: list[str], folder: Path, *, same: bool) -> int:
    """Upgrade a cluster of ``old``, take it back, upgrade it again; return the acknowledged sends.

    Args:
        old: The command of the other release.
        folder: Where the cluster lives.
        same: ``old`` is this tree's own release: the coordinator and the master are enough.
    """
    cluster = Mixed(folder, old)
    try:
        cluster.start_all()
        endpoints = ["{}:{}".format(*cluster.address(name)) for name in NODES]
        with Client(endpoints) as client:
            client.create_topic(TOPIC, 2)
        with Load(endpoints) as load:
            for name in ("coordinator", NODES[0]) if same else ("coordinator", *NODES):
                cluster.change(name)
            if not same:
                for name in (*reversed(NODES), "coordinator"):
                    cluster.change(name)
                for name in ("coordinator", *NODES):
                    cluster.change(name)
        assert load.error is None, load.error
        code, level, usable = verdict(cluster)
        if level < usable:
            assert code == 1
            done = cluster.say("cluster", "set", "level", str(usable), "--yes")
            assert done[0] == 0, done[1]
        assert verdict(cluster) == (0, usable, usable)
        with Client(endpoints) as client:
            kept = Counter(int(one.body) for one in client.read(TOPIC))
        assert load.acknowledged <= kept.keys(), sorted(load.acknowledged - kept.keys())[:10]
        assert max(kept.values()) == 1, "stored twice"
        return len(load.acknowledged)
    finally:
        cluster.close()


def wheel_of(commit: str, folder: Path) -> Path:
    """Build the wheel of a commit in ``folder``."""
    packed = subprocess.run(
        ["git", "archive", commit], cwd=ROOT, capture_output=True, check=True
    ).stdout
    with tarfile.open(fileobj=BytesIO(packed)) as archive:
        archive.extractall(folder / "sources", filter="data")
    subprocess.run(
        ["uv", "build", "--quiet", "--wheel", "--out-dir", str(folder)],
        cwd=folder / "sources",
        check=True,
    )
    (found,) = folder.glob("twinlog-*.whl")
    return found


def installed(wheel: Path, folder: Path) -> list[str]:
    """Install a wheel with the server extra in ``folder``; return its command."""
    subprocess.run(["uv", "venv", "--quiet", "--python", sys.executable, str(folder)], check=True)
    python = str(folder / "bin" / "python")
    what = f"twinlog[server] @ {wheel.as_uri()}"
    subprocess.run(["uv", "pip", "install", "--quiet", "--python", python, what], check=True)
    return [str(folder / "bin" / "twinlog")]


def main() -> None:
    """Build, install and roll."""
    (commit,) = sys.argv[1:]
    with TemporaryDirectory() as name:
        folder = Path(name)
        old = installed(wheel_of(commit, folder), folder / "old")
        (folder / "cluster").mkdir()
        kept = roll(old, folder / "cluster", same=False)
    print(f"{kept} acknowledged messages, each there once; {commit} to this tree, back and again")


if __name__ == "__main__":
    main()
