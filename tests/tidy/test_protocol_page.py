"""``docs/protocol.md`` and the code name the same rules, checks, invariants and mutants.

Not here: whether the checks hold. The simulator (`tests.sim`) and the unit tests show that.
"""

from __future__ import annotations

import ast
import re
from importlib import import_module
from pathlib import Path

import replication
from cli.drill.scenario import shipped
from tests.sim.invariants.invariant import Invariant
from tests.sim.mutants.hunt import MUTANTS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "protocol.md").read_text(encoding="utf-8")
RULES = re.findall(r"(?m)^\* \*\*(R\d+)\.\*\*", PAGE)
TABLE = re.findall(
    r"(?m)^    (R\d+) +(\S.*?) +((?:core|register)\.\S+)$", replication.__doc__ or ""
)


def test_rules_are_numbered_without_gaps() -> None:
    """A rule keeps its number, so that code and tests can name it."""
    assert [f"R{number}" for number in range(1, len(RULES) + 1)] == RULES


def test_every_check_of_the_code_is_a_rule_of_the_page() -> None:
    """The table in ``replication`` names rules of the page and functions that exist."""
    assert len(TABLE) > 30
    for rule, _, function in TABLE:
        assert rule in RULES
        found: object = replication
        path = f"replication.{function}".split(".")
        while path[-1] not in dir(found):
            module = next(n for n in range(len(path) - 1, 0, -1) if is_module(path[:n]))
            found = import_module(".".join(path[:module]))
            for name in path[module:-1]:
                found = getattr(found, name)
            assert path[-1] in dir(found), function


def is_module(path: list[str]) -> bool:
    """Whether there is a module or package at ``path``."""
    place = ROOT.joinpath(*path)
    return place.with_suffix(".py").exists() or place.is_dir()


def test_rules_that_are_named_exist() -> None:
    """Every rule number in source, tests and pages is one of the page's."""
    files = [
        path
        for folder in ("replication", "storage", "node", "twinlog", "cli", "tests", "docs")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in {".py", ".md", ".txt"}
    ]
    for path in files:
        for named in re.findall(
            r"\b(?:rules? |docs/protocol\.md |, )(R\d{1,2})\b", path.read_text()
        ):
            assert named in RULES, f"{path.relative_to(ROOT)} names {named}"


def named_invariants() -> set[str]:
    """Every invariant of the simulator: its classes, and those that the judge raises by name."""
    found: set[str] = set()
    for path in (ROOT / "tests" / "sim").rglob("*.py"):
        if path.parent.name == "mutants" or path.stem.startswith("test_"):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef) and path.parent.name == "invariants":
                found.add(node.name)
            if isinstance(node, ast.Constant) and re.fullmatch(r"[A-Z]\w+", str(node.value)):
                found.add(str(node.value))
    return found


def test_the_page_names_invariants_and_mutants_that_exist() -> None:
    """Each name in the table of checks is one of the simulator's, and no mutant is missing."""
    table = PAGE.partition("## How each rule is checked")[2]
    rows = [line.split("|") for line in table.splitlines() if line.startswith("| R")]
    invariants = {name for row in rows for name in re.findall(r"`(\w+)`", row[3])}
    mutants = {name for row in rows for name in re.findall(r"`(\w+)`", row[4])}
    assert invariants <= named_invariants(), invariants - named_invariants()
    assert mutants == {mutant.name for mutant in MUTANTS}, "the page and tests/sim differ"
    for row in rows:
        assert set(re.findall(r"R\d+", row[1])) <= set(RULES)


def test_the_guarantees_link_to_what_exists() -> None:
    """Each promise's rules, invariants, mutants, drills and tests are there under these names."""
    page = (ROOT / "docs" / "guarantees.md").read_text(encoding="utf-8")
    table = page.partition("| promise | rules |")[2]
    rows = [line.split("|")[1:-1] for line in table.splitlines() if line.startswith("| ")]
    assert len(rows) > 8
    known = {mutant.name for mutant in MUTANTS}
    for promise, rules, invariants, mutants, others in rows:
        assert set(re.findall(r"R\d+", rules)) <= set(RULES), promise
        assert set(re.findall(r"`(\w+)`", invariants)) <= named_invariants(), promise
        assert set(re.findall(r"`(\w+)`", mutants)) <= known, promise
        drills = re.search(r"drills? ((?:`[\w-]+`(?:, )?)+)", others)
        named = set(re.findall(r"`([\w-]+)`", drills[1])) if drills else set()
        assert named <= set(shipped()), promise
        for path, name in re.findall(r"`(tests/[\w/]+)(?:::(\w+))?`", others):
            place = ROOT / path
            file = place.with_suffix(".py")
            assert place.is_dir() or file.is_file(), path
            assert not name or f"def {name}(" in file.read_text(encoding="utf-8"), name


def test_every_invariant_names_rules_of_the_page() -> None:
    """An invariant that holds no rule is either needless, or the page lacks a rule."""
    for invariant in Invariant.__subclasses__():
        named = invariant.rules.split(", ")
        assert set(named) <= set(RULES), f"{invariant.__name__} names {invariant.rules}"
