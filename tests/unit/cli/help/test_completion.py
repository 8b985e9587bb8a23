"""Completion scripts: whole, and right in the shells that this machine has."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from cli.help.completion import SCRIPTS, known_words
from cli.help.pages import visible
from tests.fakes.cli_cluster import FakeCluster

CASES = [
    ("twinlog clu", "cluster"),
    ("twinlog cluster he", "health"),
    ("twinlog -c x.toml cluster fail", "failover"),
    ("twinlog cluster switchover --d", "--dry-run"),
    ("twinlog message read orders --fo", "--follow --format"),
    ("twinlog topic list -o js", "json jsonl"),
    ("twinlog topic list --out", "--output"),
    ("twinlog demo --ke", "--keep"),
]
"""A line up to the cursor, and what it can become."""


def script(shell: str, folder: Path) -> Path:
    """What ``twinlog completion SHELL`` prints, in a file."""
    code, out, err = FakeCluster(folder).run("completion", shell)
    assert (code, err) == (0, "")
    path = folder / f"twinlog.{shell}"
    path.write_text(out, encoding="utf-8")
    return path


@pytest.mark.parametrize("shell", SCRIPTS)
def test_a_script_has_every_command_and_option(shell: str, tmp_path: Path) -> None:
    """Nothing of the tree is left out."""
    text = script(shell, tmp_path).read_text(encoding="utf-8")
    for command in visible():
        assert command.path[-1] in text
    for options in known_words().values():
        for word, _ in options:
            assert word.removeprefix("--") in text


BASH = """
source "$1"
COMP_WORDS=($2)
COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
_twinlog
printf '%s ' "${COMPREPLY[@]}"
"""
ZSH = """
autoload -Uz compinit && compinit -D -u
source "$1"
words=(${(z)2}) CURRENT=${#words}
_describe() { for each in ${(P)2}; do print -rn -- "${each%%:*} "; done }
_files() { }
_twinlog
"""
FISH = "source $argv[1]; complete -C $argv[2] | string replace -r '\\t.*' ''"


@pytest.mark.parametrize(("line", "wanted"), CASES)
@pytest.mark.parametrize("shell", SCRIPTS)
def test_a_shell_completes(shell: str, line: str, wanted: str, tmp_path: Path) -> None:
    """In the shell itself, where it is installed."""
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    path = script(shell, tmp_path)
    run = {
        "bash": ["bash", "--norc", "-c", BASH, "bash", str(path), line],
        "zsh": ["zsh", "-f", "-c", ZSH, "zsh", str(path), line],
        "fish": ["fish", "-N", "-c", FISH, str(path), line],
    }[shell]
    done = subprocess.run(run, capture_output=True, text=True, timeout=60, check=False)
    start = line.rpartition(" ")[2]
    found = {word for word in done.stdout.split() if word.startswith(start)}
    assert set(wanted.split()) <= found, (done.stdout, done.stderr)
    if shell == "bash":
        assert found == set(wanted.split())


def test_an_unknown_shell(tmp_path: Path) -> None:
    """Exit 64 with those that there are."""
    code, _, err = FakeCluster(tmp_path).run("completion", "csh")
    assert code == 64
    assert "there are bash, zsh, fish" in err
