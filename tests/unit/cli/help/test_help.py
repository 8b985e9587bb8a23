"""Help: every command is found, explained, and has an example that parses."""

from __future__ import annotations

import ast
import re
import resource
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from cli.context import Context
from cli.failures import Exit
from cli.help.pages import arguments, noun_page, overview, page, reference, visible
from cli.options import split
from cli.parsing import bind, load
from cli.tree import COMMANDS, NEVER_SUGGESTED, NOUNS, Command, find, names
from tests.fakes.cli_cluster import FakeCluster

ROOT = Path(__file__).parents[4]


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


UNWATCHED = ("config show", "drill list", "drill show", "dlq show")
"""Show files, or messages one after the other."""


@pytest.mark.parametrize("command", visible(), ids=lambda command: command.name)
def test_what_shows_the_cluster_can_be_watched(command: Command) -> None:
    """Each command that lists or shows what changes by itself shows it again with ``--watch``."""
    showing = ("list", "show", "status", "health", "top", "members")
    if command.name not in UNWATCHED and command.name.split()[-1] in showing:
        assert any("--watch" in argument.name for argument in arguments(command))


PASTED = ("  twinlog ", "  echo ", "  seq ")
"""Examples are pasted whole, so they may be longer than a line."""


def test_help_fits_80_columns() -> None:
    """On the narrowest terminal people use."""
    pages = [overview(), *map(noun_page, NOUNS), *map(page, visible())]
    for text in pages:
        for line in text.splitlines():
            assert len(line) <= 80 or line.startswith(PASTED), line


def test_tables_fit_80_columns() -> None:
    """The golden tables, as wide as their values are there; sentences may wrap."""
    for path in sorted((ROOT / "tests" / "golden_cli").glob("*.txt")):
        first = path.read_text(encoding="utf-8").partition("=== wide")[0]
        shown = first.partition("--- stdout")[2].partition("--- stderr")[0]
        for block in shown.split("\n\n"):
            rows = block.strip().splitlines()
            if rows and re.fullmatch(r"[A-Z-]+( +[A-Z-]+)+", rows[0]) and path.stem not in LONG:
                assert max(map(len, rows)) <= 80, (path.name, rows)


LONG = {"config-show", "config-check"}
"""Their values are paths of the test's own directory."""


def test_a_command_is_two_places() -> None:
    """A command is a function and a line of the tree: a function without its line is named."""
    known = {command.target for command in COMMANDS}
    for path in sorted((ROOT / "cli").rglob("*.py")):
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for found in ast.parse(path.read_text(encoding="utf-8")).body:
            if not isinstance(found, ast.FunctionDef) or found.name.startswith("_"):
                continue
            if any("PRIVATE" in ast.unparse(arg) for arg in found.args.kwonlyargs):
                assert f"{module}:{found.name}" in known, "it is not in cli/commands"


def test_a_mistyped_command_is_never_a_harmful_one(tmp_path: Path) -> None:
    """``node sto`` may have been ``node start``: neither it nor its opposite is guessed."""
    assert set(names()) >= NEVER_SUGGESTED
    for name in NEVER_SUGGESTED:
        _, _, err = FakeCluster(tmp_path).run(*f"{name}x".split())
        assert f'the nearest is "{name}"' not in err
    assert 'the nearest is "topic list"' in FakeCluster(tmp_path).run("topic", "lst")[2]


@pytest.mark.parametrize(
    ("call", "hint"),
    [
        ("nosuch verb", None),
        ("message tail orders --max 1", None),
        ("cluster maintenance n3 --ye", None),
        ("dev down --wpe", None),
        ("message tail orders --fromat raw", "--format"),
        ("cluster statsu", "cluster status"),
    ],
)
def test_a_suggestion_is_near_and_agrees_to_nothing(
    call: str, hint: str | None, tmp_path: Path
) -> None:
    """What is merely the least far is none, and ``--yes`` is for the caller to say."""
    code, _, err = FakeCluster(tmp_path).run(*call.split())
    assert code == Exit.USAGE
    assert (f'the nearest is "{hint}"' in err) if hint else ("the nearest is" not in err)


HARM = re.compile(r"twinlog [^\n]*(?:--wipe|--unclean|--yes|\blog repair\b)(?![^\n]*--dry-run)")


def test_no_hint_does_harm() -> None:
    """What is printed to be pasted shows a plan or asks first; examples are for readers."""
    for path in sorted((ROOT / "cli").rglob("*.py")):
        if path.parent.name == "commands":
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        joined = [node for node in ast.walk(tree) if isinstance(node, ast.JoinedStr)]
        inner = {id(part) for node in joined for part in node.values}
        for found in ast.walk(tree):
            if isinstance(found, ast.JoinedStr | ast.Constant) and id(found) not in inner:
                text = ast.unparse(found)
                harmful = HARM.search(text) and "stop it: " not in text and len(text) < 300
                assert not harmful, f"{path.name}:{found.lineno}: {text}"


def test_every_noun_is_in_the_overview() -> None:
    """The first page names every noun and verb, and fits a screen's width."""
    text = overview()
    for noun in NOUNS:
        assert f"  {noun}" in text
    for command in visible():
        assert command.path[-1] in text
    assert {command.path[0] for command in visible()} == set(NOUNS)


def test_the_reference_page_is_current() -> None:
    """``docs/cli.md`` is what the generator writes: python -m tests.tidy.generate."""
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
        "import sys, cli.cluster.status, cli.cluster.change, cli.cluster.topic\n"
        "import cli.message.read, cli.cluster.node, cli.dev.local_cluster\n"
        "import cli.message.send, cli.message.find, cli.cluster.coordinator, cli.config\n"
        "import cli.connection, twinlog.client.blocking\n"
        "import replication.coordinator.blocking_client, node.config.config\n"
        "assert 'trio' not in sys.modules and 'anyio' not in sys.modules\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr.decode()
