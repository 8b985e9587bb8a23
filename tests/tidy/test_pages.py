"""The generated pages are current, and nothing of the program is missing from them."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from cli.failures import EXITS, Exit
from cli.help.pages import arguments, visible
from cli.tree import COMMANDS
from node.config.section import Section
from node.config.sections import NODE_SECTIONS, SECTIONS, NodeSection
from node.observe.logs import EVENTS
from node.observe.metrics import METRICS
from replication.core.roles import MASTER_SESSION, ROLES, SLAVE_SESSION
from tests.tidy.generate import PAGES, current

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_what_the_code_renders(name: str) -> None:
    """A change of a command, setting, metric, event or exit code regenerates its page."""
    assert current(name) == PAGES[name](), "make docs"


def test_no_undocumented_command() -> None:
    """Every command with every argument stands in the page, with a meaning and an example."""
    page = current("cli.md")
    for command in visible():
        section = page.partition(f"\n### twinlog {command.name}\n")[2].partition("\n### ")[0]
        assert section, f"twinlog {command.name} is not in docs/cli.md"
        assert all(example in section for example in command.examples)
        for argument in arguments(command):
            assert f"| `{argument.name}` |" in section
            assert argument.text, f"{command.name} {argument.name} has no meaning"
    hidden = {command.name for command in COMMANDS} - {command.name for command in visible()}
    assert hidden == {"dev supervise"}, "only what twinlog itself calls is hidden"


SETTINGS: list[tuple[str, type[Section]]] = [("[node]", NodeSection), *SECTIONS.items()]


@pytest.mark.parametrize(("title", "section"), SETTINGS, ids=lambda value: str(value))
def test_no_undocumented_setting(title: str, section: type[Section]) -> None:
    """Every key of the cluster file stands in the page with its reason."""
    page = current("settings.md").partition(f"[{title}]\n")[2].partition("\n## ")[0]
    for field, info in section.model_fields.items():
        assert info.description, f"{title} {field} has no reason"
        assert f"| `{info.alias or field}` |" in page
        assert info.description in page
    for key, what in section.later.items():
        assert what
        assert f"`{key}`: {what}" in page


def test_what_a_node_may_repeat_is_a_section() -> None:
    """``[node.X]`` has the keys of ``[X]``; the page needs no second table for it."""
    assert set(NODE_SECTIONS) <= set(SECTIONS)


FROZEN = ["storage/settings.py", "replication/settings.py", "node/clients/limits.py"]


@pytest.mark.parametrize("name", FROZEN)
def test_the_settings_of_a_layer_are_explained(name: str) -> None:
    """Each field of a frozen settings class is named in its docstring or has a text of its own."""
    tree = ast.parse((ROOT / name).read_text(encoding="utf-8"))
    for found in tree.body:
        if not isinstance(found, ast.ClassDef):
            continue
        about = ast.get_docstring(found) or ""
        for place, statement in enumerate(found.body):
            if not isinstance(statement, ast.AnnAssign):
                continue
            field = ast.unparse(statement.target)
            after = found.body[place + 1] if place + 1 < len(found.body) else None
            own = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
            listed = re.search(rf"(?m)^\s*([a-z_]+, )*{field}(, [a-z_]+)*:|``{field}``", about)
            assert own or listed, f"{found.name}.{field} says neither unit nor reason"


def test_every_figure_has_help() -> None:
    """Each metric has a help text of at least three words, and a row in its page."""
    page = current("metrics.md")
    for figure in METRICS:
        assert len(figure.help.split()) > 2, figure.name
        assert figure.help.endswith(".")
        assert f"| `{figure.name}" in page


def test_every_event_has_a_meaning() -> None:
    """The names a log can hold are the names of the page."""
    page = current("events.md")
    for name, meaning in EVENTS.items():
        assert f"| `{name}` | {meaning} |" in page


def test_exit_codes_are_one_table() -> None:
    """The enum, ``twinlog help exit`` and the page hold the same codes, each once."""
    assert set(EXITS) == set(Exit)
    rows = re.findall(r"(?m)^\| (\d+) \| (\w+) \| (.+) \| (.+) \|$", current("exit-codes.md"))
    expected = [(str(int(code)), code.name.lower(), *EXITS[code]) for code in sorted(Exit)]
    assert rows == expected


@pytest.mark.parametrize("table", [ROLES, MASTER_SESSION, SLAVE_SESSION], ids=lambda t: t.name)
def test_every_move_is_drawn(table: object) -> None:
    """The diagrams hold each move of the tables, and each label has one colon before it."""
    page = current("state-machines.md")
    for (state, given), after in table.moves.items():  # type: ignore[attr-defined]
        label = given.value.replace(":", ",")
        assert f"    {state.value} --> {after.value}: {label}\n" in page
    for line in page.splitlines():
        if " --> " in line:
            assert line.count(":") <= 1


WRITTEN = sorted([ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")])
NAMED = re.compile(
    r"`((?:twinlog|storage|replication|node|cli|tests|docs|benchmarks|examples|deploy)/[\w./-]*\w/?)"
    r"(?:::(\w+))?`"
)


@pytest.mark.parametrize("path", WRITTEN, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_pages_name_files_that_exist(path: Path) -> None:
    """Every file and test of the tree that a page names exists."""
    for name, function in NAMED.findall(path.read_text(encoding="utf-8")):
        place = ROOT / name
        module = place.with_suffix(".py")
        assert place.exists() or module.exists(), f"there is no {name}"
        if function:
            text = (place if place.is_file() else module).read_text(encoding="utf-8")
            assert f"def {function}(" in text, f"{name} has no {function}"


def test_pages_link_to_pages() -> None:
    """A relative link points to a file."""
    for path in WRITTEN:
        for link in re.findall(r"\]\((?!https?:)([^)#]+)[^)]*\)", path.read_text(encoding="utf-8")):
            assert (path.parent / link).exists(), f"{path.name} links to {link}"


def test_guarantees_name_invariants_of_the_simulator() -> None:
    """The table of checks names classes that exist."""
    known = {
        found.name
        for path in (ROOT / "tests" / "sim" / "invariants").glob("*.py")
        for found in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(found, ast.ClassDef)
    }
    table = (
        (ROOT / "docs" / "guarantees.md").read_text(encoding="utf-8").partition("## How this")[2]
    )
    named = set(re.findall(r"`([A-Z][a-z]+[A-Z]\w+)`", table))
    assert named
    assert named <= known


TYPED = re.compile(r"(?<!\b[Aa] )(?<!\b[Tt]he )twinlog ([a-z]+) ([a-z]+(?:-[a-z]+)*)([^\n]*)")
NO_COMMAND = {("spark", "progress")}
"""What only looks like a command: the name of a thread."""


def texts(path: Path) -> list[str]:
    """Return the texts in a file's code; a word stands for what is filled in."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    inner = {id(v) for n in ast.walk(tree) if isinstance(n, ast.JoinedStr) for v in n.values}
    found: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts = [str(v.value) if isinstance(v, ast.Constant) else "X" for v in node.values]
            found.append("".join(parts))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found += [node.value] * (id(node) not in inner)
    return found


@pytest.mark.parametrize("folder", ["cli", "node", "replication", "storage", "twinlog"])
def test_what_hints_say_can_be_typed(folder: str) -> None:
    """Every command that a text names is one, and takes the options that stand with it."""
    known = {command.path: command for command in COMMANDS}
    nouns = {path[0] for path in known if len(path) > 1}
    anywhere = set(re.findall(r"`[^`|]*?(--[a-z-]+)", current("cli.md").partition("\n### ")[0]))
    for path in sorted((ROOT / folder).rglob("*.py")):
        for text in texts(path):
            for noun, verb, rest in TYPED.findall(text):
                if noun not in nouns or (noun, verb) in NO_COMMAND:
                    continue
                where = f"{path.relative_to(ROOT)}: twinlog {noun} {verb}{rest}"
                assert (noun, verb) in known, where
                names = " ".join(each.name for each in arguments(known[noun, verb]))
                takes = set(re.findall(r"--[a-z-]+", names))
                options = set(re.findall(r"(?<!\S)--[a-z][a-z-]*", rest))
                assert options <= takes | anywhere | {"--help"}, where
