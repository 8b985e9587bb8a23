"""Style as tests: the limits of the project, each with the sentence that says what to do.

Numbers: a function has at most 60 lines, a file at most 600; every module opens with a docstring,
every public function and class has one.  Pure modules touch nothing of the world.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("twinlog", "storage", "replication", "node", "cli")
FUNCTION_LINES_MAX = 60
FILE_LINES_MAX = 600

PURE = {
    "twinlog": {"record", "layout", "wire", "session", "producer", "errors", "units", "ranges"},
    "storage": {"settings", "errors", "state", "producers", "recovery", "flusher"},
    "replication": {
        "core", "commands", "events", "frames", "register", "in_sync", "waiters",
        "consistency", "master_session", "slave_session", "roles", "pacing", "settings",
    },
    "node": {"status"},
}  # fmt: skip
"""Modules that decide and never do: no clock, socket, file, task or random number."""

WORLD = {
    "trio", "anyio", "os", "io", "socket", "mmap", "time", "random", "logging", "pathlib",
    "subprocess", "threading", "asyncio", "select", "selectors", "fcntl", "sqlite3",
}  # fmt: skip

OPENS_FILES = {
    "storage/disk.py", "twinlog/store_reader.py", "replication/coordinator_store.py",
}  # fmt: skip

BANNED_IN_ERRORS = re.compile(r"\b(failed to|invalid|please|oops)\b", re.IGNORECASE)
BANNED_NAMES = {"utils", "util", "helpers", "helper", "manager", "common", "misc"}


def sources(*folders: str) -> list[Path]:
    """Every Python file of the given top folders."""
    found = [path for name in folders or FOLDERS for path in sorted((ROOT / name).rglob("*.py"))]
    return [path for path in found if "__pycache__" not in path.parts]


def label(path: Path) -> str:
    """The path as a test name."""
    return path.relative_to(ROOT).as_posix()


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Every function of a module, nested ones included."""
    for found in ast.walk(tree):
        if isinstance(found, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield found


@pytest.mark.parametrize("path", sources(*FOLDERS, "tests", "benchmarks", "examples"), ids=label)
def test_a_file_stays_small_and_says_what_it_is(path: Path) -> None:
    """At most 600 lines; look for the second noun. An opening docstring; functions of 60 lines."""
    text = path.read_text(encoding="utf-8")
    lines = text.count("\n")
    assert lines <= FILE_LINES_MAX, f"{lines} lines: look for the second noun in it"
    tree = ast.parse(text)
    if text.strip():
        assert ast.get_docstring(tree), "the module does not say what it is"
    for found in functions(tree):
        size = (found.end_lineno or found.lineno) - found.lineno + 1
        assert size <= FUNCTION_LINES_MAX, f"{found.name} has {size} lines (line {found.lineno})"


@pytest.mark.parametrize("path", sources(), ids=label)
def test_public_things_are_documented(path: Path) -> None:
    """Public classes and functions, and the public methods of public classes, have docstrings."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    bare = [name for name in undocumented(tree)]
    assert not bare, f"no docstring: {', '.join(bare)}"


def undocumented(tree: ast.Module) -> Iterator[str]:
    """Names of public definitions without a docstring."""
    for found in tree.body:
        if not isinstance(found, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            continue
        if found.name.startswith("_"):
            continue
        if not ast.get_docstring(found):
            yield found.name
        if isinstance(found, ast.ClassDef):
            for inner in found.body:
                if not isinstance(inner, (ast.FunctionDef, ast.AsyncFunctionDef)):
                    continue
                trivial = inner.name.startswith("_") or is_protocol_or_property(inner)
                if not trivial and not ast.get_docstring(inner):
                    yield f"{found.name}.{inner.name}"


def is_protocol_or_property(found: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether the definition is a property, a setter or an override of something documented."""
    names = {ast.unparse(decorator).split(".")[-1] for decorator in found.decorator_list}
    return bool(names & {"property", "setter", "cached_property", "override", "overload"})


def pure_files() -> list[Path]:
    """The pure modules that exist; the names above must exist, or the list lies."""
    return [ROOT / top / f"{name}.py" for top, names in sorted(PURE.items()) for name in
            sorted(names)]  # fmt: skip


@pytest.mark.parametrize("path", pure_files(), ids=label)
def test_pure_modules_touch_nothing(path: Path) -> None:
    """What they need arrives as an argument; what they want done leaves as a value."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    imported: set[str] = set()
    for found in ast.walk(tree):
        if isinstance(found, ast.Import):
            imported |= {name.name.split(".")[0] for name in found.names}
        elif isinstance(found, ast.ImportFrom) and found.module and found.level == 0:
            imported.add(found.module.split(".")[0])
    assert not imported & WORLD, f"imports {', '.join(sorted(imported & WORLD))}"


@pytest.mark.parametrize("path", sources("storage", "replication"), ids=label)
def test_only_the_disk_opens_files(path: Path) -> None:
    """The storage engine reaches files through ``storage/disk.py`` alone."""
    if label(path) in OPENS_FILES:
        return
    tree = ast.parse(path.read_text(encoding="utf-8"))
    calls = [found for found in ast.walk(tree) if isinstance(found, ast.Call)]
    opened = [call.lineno for call in calls if ast.unparse(call.func) in {"open", "os.open"}]
    assert not opened, f"opens a file in line {opened}"


@pytest.mark.parametrize("path", sources(), ids=label)
def test_words(path: Path) -> None:
    """File names are nouns of the field; texts say what is wrong and what to do."""
    assert path.stem not in BANNED_NAMES
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for found in ast.walk(tree):
        if isinstance(found, ast.Raise) and found.exc is not None:
            for text in ast.walk(found.exc):
                if isinstance(text, ast.Constant) and isinstance(text.value, str):
                    match = BANNED_IN_ERRORS.search(text.value)
                    assert match is None, f"line {text.lineno}: {text.value!r}"


def test_the_wheel_lists_every_package() -> None:
    """A folder with modules that pyproject.toml does not list would be missing from the wheel."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    listed = set(project["tool"]["setuptools"]["packages"])
    found: set[str] = set()
    for path in sources():
        package = ".".join(path.relative_to(ROOT).parent.parts)
        found.add(package if package.startswith("twinlog") else f"twinlog._app.{package}")
    assert listed == found


def test_folder_names_clash_with_no_dependency() -> None:
    """No installed distribution brings a top-level name of our checkout."""
    from importlib.metadata import packages_distributions

    ours = {"node", "replication", "storage", "cli"}
    clashes = {name: owners for name, owners in packages_distributions().items() if name in ours}
    assert all(set(owners) == {"twinlog"} for owners in clashes.values()), clashes
