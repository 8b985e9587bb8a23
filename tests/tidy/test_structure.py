"""The shape of the tree: no circles, no fragments, names that say which, tests beside tests.

Each exception is listed with its reason; its entry is removed with it, so that the lists
only shrink.

Not here: limits of files, functions and folders (`tests.tidy.test_style`), which package may import
which (``.importlinter``).
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import Path

from tests.tidy.imports import ROOT, circles, graph, modules

FRAGMENT_LINES = 70
TEXT_MAX = 300
"""Characters of a text whose words may name a function: longer ones are prose."""

FRAGMENTS = {
    "cli.help.schemas": "the schemas that are made from documents, read and found",
    "cli.log.topics": "names of topics and the closest one: a noun of its own",
    "node.observe.task_tree": "the task tree of trio, for a signal",
    "node.observe.systemd": "the protocol of systemd, tested without a node",
    "node.reload": "what a changed file means, tested without a signal",
    "node.leases.clock": "pure, beside the turns that read the wall clock",
    "replication.coordinator.history": "trims the history; pure, beside a service that is not",
    "storage.log.memory_pool": "the pool, pure, beside the log that is not",
    "replication.driver.incoming_batches": "the way in, beside the way out",
    "replication.driver.odd_frames": "what other releases hear, beside the driver",
    "storage.state.ages": "ages of a log by a monotonic clock: numbers alone",
    "storage.marks.clean_start": "a decision, pure, beside the files it is made from",
    "storage.messaging.holds": "pure, beside the lookup in queues that is not",
    "storage.recovery.close": "the end of a store, beside its beginning",
    "twinlog.consumer.aio": "the awaiting shell of a reader; anyio is an extra",
    "twinlog.groups.requests": "what a member asks and counts, beside its decisions",
    "twinlog.groups.speed": "how much may be held, decided by numbers alone and tested so",
    "twinlog.producer.later": "times as callers write them, beside what is stored of a message",
    "twinlog.spark.engine.spark_errors": "errors of Spark by their names, without importing it",
}
"""Modules below 70 lines that one other module imports, and why they are not part of it."""

SAME_NAMES = {
    ("twinlog/producer", "aio"): "of producers, and of one-way sends",
    ("twinlog/producer", "blocking"): "of producers, and of one-way sends",
    ("twinlog/spark", "job"): "each job's entry, in the job's folder",
    ("twinlog/spark", "key_index"): "rebuilding it and verifying it",
    ("twinlog/spark", "nodes"): "reading nodes, and verifying them",
    ("twinlog/spark", "queries"): "of the source, and of the reports",
    ("twinlog/spark", "settings"): "of a replay, and of the sink",
    ("twinlog/spark", "view"): "of a directory, and of an archive",
    ("twinlog/store", "queues"): "reading them, and verifying them",
    ("twinlog/store", "timers"): "reading them, and verifying them",
}
"""Files of one name in one folder of a package, and what tells them apart."""


FOR_USERS = tuple(
    f"twinlog/{name}" for name in ("client", "consumer", "groups", "producer", "spark/sessions")
)
"""Modules with methods that only users may call."""

NOT_CALLED = {
    "getDefaultReadLimit": "Spark calls it",
    "initialOffset": "Spark calls it",
    "latestOffset": "Spark calls it",
    "prepareForTriggerAvailableNow": "Spark calls it",
    "reportLatestOffset": "Spark calls it",
    "streamReader": "Spark calls it",
    "streamWriter": "Spark calls it",
    "diagrams": "drawn for the generated page of roles",
    "first_offset": "of work queues, which the client port does not serve yet",
    "run_at": "of work queues, which the client port does not serve yet",
}
"""Functions that no module of the source names, and who calls them."""


def test_circles_are_found() -> None:
    """The search notices a circle of two, one of three, and reports nothing else."""
    assert circles({"a": ["b"], "b": ["a"], "c": []}) == [{"a", "b"}]
    assert circles({"a": ["b"], "b": ["c"], "c": ["a"]}) == [{"a", "b", "c"}]
    assert circles({"a": ["b", "c"], "b": ["c"], "c": []}) == []


def test_no_modules_import_each_other() -> None:
    """A circle is one module in two files: hand over a value, or move what both need below both."""
    found = [sorted(circle) for circle in circles(graph())]
    assert not found, f"import each other: {found}"


def test_no_module_is_a_fragment_of_another() -> None:
    """A short module that only one other imports is part of that one, unless it has a reason."""
    users: dict[str, set[str]] = defaultdict(set)
    for name, imported in graph().items():
        for other in imported:
            users[other].add(name)
    short = {
        name
        for name, path in modules().items()
        if path.name != "__init__.py"
        and len(users[name]) == 1
        and path.read_text(encoding="utf-8").count("\n") < FRAGMENT_LINES
    }
    assert short <= set(FRAGMENTS), f"join or list: {sorted(short - set(FRAGMENTS))}"


def test_a_name_says_which_file() -> None:
    """Within one folder of a package no two files have one name, unless what differs is listed."""
    places: dict[tuple[str, str], list[str]] = defaultdict(list)
    for path in modules().values():
        parts = path.relative_to(ROOT).parts
        if path.name != "__init__.py":
            places["/".join(parts[:2]) if len(parts) > 2 else parts[0], path.stem].append(str(path))
    twice = {key: paths for key, paths in places.items() if len(paths) > 1}
    new = {key: paths for key, paths in twice.items() if key not in SAME_NAMES}
    assert not new, f"rename: {new}"


def words_of(tree: ast.Module) -> set[str]:
    """Every name that a module mentions: variables, attributes, keywords, and words of texts."""
    found: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.keyword(arg=str(name)):
                found.add(name)
            case ast.Constant(value=str(text)) if len(text) < TEXT_MAX:
                found |= set(re.findall(r"\w+", text))
            case _:
                pass
    return found


def test_what_cannot_be_reached_is_deleted() -> None:
    """A function that only tests call is a door without a handle, or belongs to the tests.

    What users of the package call is left out.
    """
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in modules().values()}
    named: set[str] = set().union(*(words_of(tree) for tree in trees.values()))
    alone = {
        found.name: f"{path.relative_to(ROOT)}:{found.lineno}"
        for path, tree in trees.items()
        if not path.relative_to(ROOT).as_posix().startswith(FOR_USERS)
        for found in ast.walk(tree)
        if isinstance(found, (ast.FunctionDef, ast.AsyncFunctionDef))
        and found.name not in named
        and not found.name.startswith("__")
    }
    new = {name: place for name, place in alone.items() if name not in NOT_CALLED}
    assert not new, f"delete, move to the tests, or say who calls it: {new}"


def takes_from_tests(path: Path) -> list[str]:
    """What a file imports out of a test module or a conftest."""
    found: list[str] = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("tests."):
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
            for name in names:
                leaf = name.rpartition(".")[2]
                module = ROOT.joinpath(*name.split(".")).with_suffix(".py")
                if leaf.startswith(("test_", "conftest")) and module.exists():
                    found.append(name)
    return found


def test_no_test_imports_a_test() -> None:
    """What two tests need is a builder or a fixture: `tests.stores`, `tests.fakes`, `fixtures`."""
    found = {
        path.relative_to(ROOT).as_posix(): names
        for path in sorted((ROOT / "tests").rglob("*.py"))
        if (names := takes_from_tests(path))
    }
    assert not found, f"move what they share: {found}"


def test_drawers_stay_sorted() -> None:
    """A test file is named after what it is about, not after how it came to be written."""
    drawers = {"corners", "misc", "odd", "odd_data", "other", "outside", "parts", "pure", "rare"}
    found = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "tests").rglob("test_*.py")
        if path.stem.removeprefix("test_") in drawers
    }
    assert not found, f"sort into files by what each test is about: {sorted(found)}"


def test_lists_of_exceptions_name_what_exists() -> None:
    """An entry about a module that is gone is a leftover."""
    known = modules()
    gone = {name for name in FRAGMENTS if name not in known}
    assert not gone, f"no longer there: {sorted(gone)}"
