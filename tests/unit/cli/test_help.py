"""Help: every command is found, explained, and has an example that parses."""

from __future__ import annotations

import resource
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from cli.context import Context
from cli.help import arguments, overview, page, reference, visible
from cli.options import split
from cli.parsing import bind, load
from cli.tree import COMMANDS, NOUNS, Command, find

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_every_command_is_explained(command: Command) -> None:
    """It has a function with a docstring, help for each argument, and an example of itself."""
    assert load(command).__doc__
    assert command.examples
    for argument in arguments(command):
        assert argument.text, f"{argument.name} has no help"
    text = page(command)
    for example in command.examples:
        assert example in text


@pytest.mark.parametrize("command", visible(), ids=lambda command: command.name)
def test_examples_parse(command: Command) -> None:
    """An example can be pasted: its words are this command and its options are known."""
    for example in command.examples:
        words = shlex.split(example.rpartition("| ")[2])
        assert words[0] == "twinlog"
        _, rest = split(words[1:], {})
        found, left = find(rest)
        assert found is command
        bind(command, left, Context())


def test_every_noun_is_in_the_overview() -> None:
    """The first page names every noun and verb, and fits a screen's width."""
    text = overview()
    for noun in NOUNS:
        assert f"  {noun}" in text
    for command in visible():
        assert command.path[-1] in text
    assert {command.path[0] for command in visible()} == set(NOUNS)


def test_the_reference_page_is_current() -> None:
    """``docs/cli.md`` is what the generator writes: python -m cli.help > docs/cli.md."""
    assert (ROOT / "docs" / "cli.md").read_text(encoding="utf-8") == reference()


def test_help_is_quick_and_asks_for_nothing_heavy() -> None:
    """``twinlog --help`` needs no parser, no printer library and no event loop."""
    script = (
        "import sys\nfrom cli.app import main\ncode = main(['--help'])\n"
        "heavy = {'cyclopts', 'rich', 'trio', 'pydantic'} & set(sys.modules)\n"
        "assert not heavy, heavy\nsys.exit(code)"
    )
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, timeout=60, check=False
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == 0, done.stderr.decode()
    assert after.ru_utime - before.ru_utime < 5  # 0.1 s; CPU time, for a busy machine is no failure


def test_a_question_imports_no_event_loop() -> None:
    """The modules of commands that only ask never import trio."""
    script = (
        "import sys, cli.cluster, cli.cluster_change, cli.topic, cli.message, cli.node, cli.dev\n"
        "import cli.message_send, cli.message_find, cli.coordinator, cli.config\n"
        "import cli.connection, twinlog.client\n"
        "import replication.coordinator_calls, node.config\n"
        "assert 'trio' not in sys.modules and 'anyio' not in sys.modules\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr.decode()
