"""The README as it stands: short, and every command and Python block in it is run.

A block belongs to the heading above it. Shell lines are handed to bash as they are, in a folder
with the checkout's ``cluster.toml``; ``uv`` is a script that drops ``run`` and uses the environment
of this test, so that nothing is installed again. If the ports in the text are in use, others
replace them. A block that no test runs fails `test_nothing_is_left_out`.

Not here: installing uv (``.ci/run`` does it the README's way), the wheel (``test_wheel``).
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from cli.dev.private_cluster import free_ports, is_free
from tests.stores.golden import unpack

ROOT = Path(__file__).parents[2]
LINES_MAX = 120
WAIT_SECONDS = 180.0
PORTS = [7400] + [7400 + 10 * node + port for node in (1, 2, 3) for port in (0, 1, 2)]
README = (ROOT / "README.md").read_text(encoding="utf-8")


@dataclass(frozen=True)
class Block:
    """A fenced block: the heading above it, its language, its text."""

    heading: str
    language: str
    text: str

    @property
    def commands(self) -> list[str]:
        """The lines of a console block behind their prompt."""
        return [line.removeprefix("$ ") for line in self.text.splitlines() if line[:2] == "$ "]


def blocks() -> list[Block]:
    """Every fenced block of the README, in order."""
    found: list[Block] = []
    heading = ""
    for part in re.finditer(r"(?ms)^## ([^\n]+)$|^```(\w*)\n(.*?)^```$", README):
        if part[1]:
            heading = part[1]
        else:
            found.append(Block(heading, part[2], part[3]))
    return found


def of(heading: str, *languages: str) -> list[Block]:
    """The blocks below one heading, of some languages."""
    return [block for block in blocks() if block.heading == heading and block.language in languages]


class Reader:
    """A user who pastes the README's commands in an empty folder."""

    def __init__(self, folder: Path, base: int = 7400) -> None:
        self.folder = folder
        self.base = base
        shims = folder / "bin"
        shims.mkdir()
        uv = shims / "uv"
        uv.write_text('#!/bin/sh\ntest "$1" = run && shift && exec "$@"\nexit 64\n')
        uv.chmod(0o755)
        paths = [str(shims), str(Path(sys.executable).parent), os.environ["PATH"]]
        self.environment = {
            **{name: value for name, value in os.environ.items() if name[:8] != "TWINLOG_"},
            "PATH": os.pathsep.join(paths),
            "PYTHONPATH": str(ROOT),
            "TMPDIR": str(folder),
            "TWINLOG_TIMEOUT": "100s",  # a machine that stands still is no outcome
        }
        (folder / "cluster.toml").write_text(self.moved((ROOT / "cluster.toml").read_text()))

    def moved(self, text: str) -> str:
        """The text as it stands; with other ports where those in it are taken."""
        if self.base == 7400:
            return text
        text = text.replace("dev up", f"dev up --base-port {self.base}")
        return re.sub(r"\b74(\d\d)\b", lambda found: str(self.base + int(found[1])), text)

    def paste(self, command: str) -> str:
        """Run one line of the README and return what it printed; it must end with 0."""
        return self.call(["bash", "-c", self.moved(command)])

    def wait_healthy(self, command: str) -> None:
        """Run the line until every node is in sync; after standing still for 3 s one needs time."""
        end = time.monotonic() + WAIT_SECONDS
        words = ["bash", "-c", self.moved(command)]
        while (
            b" healthy"
            not in subprocess.run(
                words, cwd=self.folder, env=self.environment, capture_output=True, check=False
            ).stdout
        ):
            assert time.monotonic() < end, command

    def python(self, text: str) -> str:
        """Run one Python block of the README and return what it printed."""
        return self.call([sys.executable, "-c", self.moved(text)])

    def call(self, words: list[str]) -> str:
        """Run a program in the folder and return its stdout."""
        done = subprocess.run(
            words,
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=WAIT_SECONDS,
            check=False,
        )
        assert done.returncode == 0, f"{words}\n{done.stdout}\n{done.stderr}"
        assert "Traceback" not in done.stderr
        return done.stdout


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    """A user with the README; a cluster that is left running is stopped."""
    base = 7400 if all(is_free(port) for port in PORTS) else free_ports(3)
    found = Reader(tmp_path, base)
    yield found
    found.call([sys.executable, "-m", "twinlog", "dev", "down"])


def test_it_is_short() -> None:
    """At most `LINES_MAX` lines."""
    assert README.count("\n") <= LINES_MAX


def test_every_link_leads_somewhere() -> None:
    """A page that is linked exists."""
    links = re.findall(r"\]\(([^)]+)\)", README)
    assert links
    missing = [link for link in links if not (ROOT / link.partition("#")[0]).exists()]
    assert not missing


def test_nothing_is_left_out() -> None:
    """Every block stands below a heading whose test runs it."""
    known = {
        ("Try it", "console"),
        ("Try it", "text"),
        ("A cluster of your own", "console"),
        ("A cluster of your own", "python"),
        ("Your RocketMQ store", "console"),
        ("Develop", "console"),
    }
    assert {(block.heading, block.language) for block in blocks()} == known
    for block in blocks():
        lines = block.text.splitlines() if block.language == "console" else []
        assert all(line.startswith("$ ") for line in lines), "output belongs into a text block"


@pytest.mark.processes
def test_the_demo_prints_what_the_readme_shows(reader: Reader) -> None:
    """The two lines of "Try it": the second one ends with the table, with the same rows."""
    install, demo = of("Try it", "console")[0].commands
    assert install.split("#")[0].strip() == "pip install uv"
    recipe = '-m venv "$HOME/.uv" && "$HOME/.uv/bin/pip" install'
    assert recipe in (ROOT / ".ci" / "run").read_text(), ".ci/run installs uv the README's way"
    shown = rows(of("Try it", "text")[0].text)
    printed = rows(reader.paste(demo))
    assert list(printed) == list(shown)
    for row in ("lost", "duplicated", "handled twice", "promises kept"):
        assert printed[row] == shown[row]
    for table in (printed, shown):
        assert table["acknowledged"] == table["found"] == table["handled by the group"]


def rows(text: str) -> dict[str, str]:
    """The demo's table: what, value."""
    table = text.partition("WHAT ")[2].partition("\n\n")[0].splitlines()[1:]
    pairs = [re.split(r"\s{2,}", line.strip(), maxsplit=1) for line in table]
    return {pair[0]: pair[1] for pair in pairs}


@pytest.mark.processes
def test_a_cluster_of_your_own(reader: Reader) -> None:
    """Every line in its order: the message is read from a slave, another master took over."""
    printed: dict[str, str] = {}
    for block in of("A cluster of your own", "console", "python"):
        if block.language == "python":
            printed["python"] = reader.python(block.text)
            continue
        for command in block.commands:
            words = command.partition("twinlog ")[2].split("#")[0]
            if words.startswith("cluster status"):
                reader.wait_healthy(command)
            printed[" ".join(words.split()[:2])] = reader.paste(command)
    assert '{"id": 42}' in printed["message read"]
    assert "healthy" in printed["cluster status"]
    assert "n1 is gone" in printed["cluster history"]
    address, *messages = printed["python"].splitlines()
    assert re.fullmatch(r"orders/\d@\d+", address)
    assert any("42" in line for line in messages)
    assert not (reader.folder / "data").exists()


@pytest.mark.processes
def test_your_rocketmq_store(tmp_path: Path) -> None:
    """``DIR`` is a store that RocketMQ wrote."""
    shutil.move(unpack("01-basic", tmp_path / "golden"), tmp_path / "DIR")
    someone = Reader(tmp_path)
    for command in of("Your RocketMQ store", "console")[0].commands:
        assert someone.paste(command).strip(), command


def test_the_developers_commands_exist() -> None:
    """Targets of the Makefile and the folders that pytest collects; a seed replays by itself."""
    commands = [line.split("#")[0].strip() for line in of("Develop", "console")[0].commands]
    assert commands == ["uv run pytest", "make verify", "make sim SEED=17"]
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in ("verify", "sim"):
        assert f"\n{target}:" in makefile
    assert "python -m tests.sim --seed $(SEED) --trace" in makefile


@pytest.mark.sim
def test_a_seed_is_replayed(tmp_path: Path) -> None:
    """``make sim SEED=17``, in the checkout, with this environment behind ``uv``."""
    someone = Reader(tmp_path)
    printed = someone.paste(f"make -C {ROOT} sim SEED=17")
    assert "seed 17: every invariant held" in printed
