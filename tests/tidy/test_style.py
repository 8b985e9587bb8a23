"""Style as tests: the limits of the project, each with the sentence that says what to do.

Numbers: a function has at most 60 lines, a file at most 600; every module opens with a docstring,
every public function and class has one.  Pure modules touch nothing of the world.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tidy.modules import FOLDERS, PURE, ROOT, SEAM, SHELL, files_of, label, sources

FUNCTION_LINES_MAX = 60
FILE_LINES_MAX = 600
FOLDER_MODULES_MAX = 16

WORLD = {
    "trio", "anyio", "os", "io", "socket", "mmap", "time", "random", "logging", "pathlib",
    "subprocess", "threading", "asyncio", "select", "selectors", "fcntl", "sqlite3", "secrets",
    "signal", "tempfile", "shutil", "starlette", "hypercorn", "prometheus_client", "structlog",
}  # fmt: skip

OPENS_FILES = {
    "storage/disk/disk.py", "twinlog/store/reader.py", "replication/coordinator/store.py",
    "twinlog/run_file.py", "storage/disk/thread_names.py",
}  # fmt: skip

BANNED_IN_ERRORS = re.compile(r"\b(failed to|invalid|please|oops)\b", re.IGNORECASE)
BANNED_NAMES = {"utils", "util", "helpers", "helper", "manager", "common", "misc"}


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


def test_a_folder_stays_readable() -> None:
    """At most 16 modules in a folder, also of tests: the listing is the architecture."""
    folders = {path.parent for path in sources(*FOLDERS, "tests", "benchmarks", "examples")}
    counts = {
        label(folder): len(set(folder.glob("*.py")) - {folder / "__init__.py"})
        for folder in folders
    }
    full = {name: count for name, count in counts.items() if count > FOLDER_MODULES_MAX}
    assert not full, f"divide by noun: {full}"


@pytest.mark.parametrize("path", sources(), ids=label)
def test_public_things_are_documented(path: Path) -> None:
    """Public classes and functions, and the public methods of public classes, have docstrings."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    bare = list(undocumented(tree))
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


@pytest.mark.parametrize("path", files_of(PURE, SEAM), ids=label)
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


def test_every_module_is_pure_a_seam_or_shell() -> None:
    """A new module says which it is; a list that lacks one would let it do anything."""
    listed = files_of(PURE, SEAM, SHELL)
    fronts = {path for path in sources() if path.name == "__init__.py"}
    assert len(listed) == len(set(listed)), "a module is in two lists"
    present = set(sources("twinlog", "storage", "replication", "node")) - fronts
    new, gone = sorted(map(label, present - set(listed))), sorted(map(label, set(listed) - present))
    assert not new, f"put into PURE, SEAM or SHELL: {', '.join(new)}"
    assert not gone, f"no longer there: {', '.join(gone)}"


VALUES = {
    ("node/config/sources.py", "listed"),
    ("node/config/sources.py", "nearest"),
    ("storage/marks/promise.py", "Promise"),
}
"""Plain values and functions of values that lie in a module which itself is not pure."""


def own_modules(path: Path) -> set[Path]:
    """The modules of the tree that a file imports, found through the ``__init__`` of packages."""
    found: set[Path] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.ImportFrom) or node.module is None:
            continue
        if node.module.split(".")[0] not in FOLDERS:
            continue
        place = ROOT.joinpath(*node.module.split("."))
        front = fronted(place / "__init__.py") if place.is_dir() else {}
        for name in node.names:
            source = origin(place, name.name, front)
            if (label(source), name.name) not in VALUES:
                found.add(source)
    return found


def origin(place: Path, name: str, front: dict[str, Path]) -> Path:
    """The file that ``from place import name`` takes the name from."""
    choices = (place.with_suffix(".py"), place / f"{name}.py", place / name / "__init__.py")
    for choice in choices:
        if choice.exists():
            return choice
    return front.get(name, place / "__init__.py")


def fronted(path: Path) -> dict[str, Path]:
    """Where the names come from that a package's ``__init__`` hands on."""
    return {
        name.asname or name.name: ROOT.joinpath(*node.module.split(".")).with_suffix(".py")
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ImportFrom) and node.module
        for name in node.names
    }


KERNELS = ROOT / "twinlog" / "kernels" / "__init__.py"
"""Chooses between the compiled kernels and their twins; what it hands out is pure."""


@pytest.mark.parametrize("path", files_of(PURE), ids=label)
def test_pure_modules_use_pure_modules(path: Path) -> None:
    """A module that lets another one open the file for it is not pure."""
    allowed = {*files_of(PURE), KERNELS}
    others = sorted(label(other) for other in own_modules(path) - allowed)
    assert not others, f"imports {', '.join(others)}"


@pytest.mark.parametrize("path", sources("storage", "replication"), ids=label)
def test_only_the_disk_opens_files(path: Path) -> None:
    """The storage engine reaches files through ``storage/disk/disk.py`` alone."""
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


def test_folder_names_clash_with_no_dependency() -> None:
    """No installed distribution brings a top-level name of our checkout."""
    from importlib.metadata import packages_distributions

    ours = {"node", "replication", "storage", "cli"}
    clashes = {name: owners for name, owners in packages_distributions().items() if name in ours}
    assert all(set(owners) == {"twinlog"} for owners in clashes.values()), clashes
