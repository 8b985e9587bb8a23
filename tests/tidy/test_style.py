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
    "twinlog/spark/archive": {"manifest"},
    "twinlog/spark/jobs": {"index_files", "plain", "queries", "report"},
    "twinlog/spark/sink": {"settings"},
    "twinlog": {
        "address", "answers", "compression", "errors", "finding", "inner_batches", "lane", "layout",
        "link", "messages", "outgoing", "producer", "producer_settings", "ranges", "reading",
        "record", "routing", "senders", "session", "shapes", "single_sender", "sql92",
        "sql92_lexer", "sql92_nodes", "sql92_values", "survey", "units", "wire", "kernels/codes",
        "kernels/columns", "kernels/fields", "kernels/inner", "kernels/key_cells", "kernels/match",
        "kernels/plain", "kernels/single", "spark/columns", "spark/contradictions",
        "spark/decoding", "spark/errors", "spark/foreign", "spark/options", "spark/planning",
        "spark/selection", "spark/stream",
    },
    "storage": {
        "boot", "cold_look", "epoch_history", "errors", "filtering", "flusher", "jobs", "light",
        "packing", "paging", "pool", "producers", "recovery", "retention", "sections", "settings",
        "state", "token",
    },
    "replication": {
        "calls", "commands", "consistency", "context", "core", "events", "following", "frames",
        "group_state", "in_sync", "master_session", "mastership", "outcomes", "pacing", "questions",
        "register", "register_ops", "register_rules", "roles", "settings", "slave_session", "view",
        "waiters",
    },
    "node": {
        "answers", "append_path", "config_sections", "counts", "figures", "limits", "presence",
        "reads", "status", "toml_lines",
    },
}  # fmt: skip
"""Modules that decide and never do: no clock, socket, file, task or random number, neither of their
own nor through another module of ours. They are what coverage is demanded of."""

SEAM = {
    "twinlog": {
        "store_beside", "store_check", "store_compare", "store_delays", "store_epochs",
        "store_ext_check", "store_find", "store_findings", "store_key_check", "store_key_compare",
        "store_log", "store_queue_check", "store_timer_check", "store_unchecked",
    },
    "storage": {
        "appender", "archive_mark", "batch_index", "checkpoint", "closing", "commit_log",
        "batch_queue", "config_export", "consume_queue", "cut", "derived", "dispatcher",
        "entry_check", "file_heads", "front", "identity", "key_index", "key_index_file",
        "key_query", "key_seal", "looks", "opening", "queues", "raw", "reads", "receiver",
        "reserve", "sealed_index", "segment", "segments", "slots", "snapshot", "spread",
    },
    "replication": {"driver", "keeping", "outside", "replies", "shipment", "upkeep"},
    "node": {"connection", "finds", "raw_log"},
}  # fmt: skip
"""Modules that reach the world only through an object they are given: a ``Disk``, a ``Store``, an
``Outside``. The simulator runs them as they are; they import nothing of the world either."""

SHELL = {
    "twinlog/spark/archive": {
        "job", "lease", "lines", "place", "proof", "rows", "scan", "sources", "telling", "view",
        "writing",
    },
    "twinlog/spark/jobs": {
        "archived", "building", "compact", "compact_frames", "compact_ranges", "compaction_files",
        "compare", "engine", "index_check", "rebuild", "rebuild_index", "rebuild_queues", "replay",
        "replay_archive", "replay_memory", "session", "sides", "splits", "spark_errors", "tables",
        "verify", "verify_nodes",
    },
    "twinlog/spark/sink": {"writer"},
    "twinlog": {
        "__main__", "aio", "aio_connection", "aio_producer", "client", "connection", "pipeline",
        "reader", "store_compacted", "store_config", "store_files", "store_keys", "store_marks",
        "store_batch_queues", "store_owner", "store_pull", "store_queues", "store_reader",
        "store_timers", "store_topics",
        "spark/asking", "spark/batch", "spark/cluster", "spark/directory", "spark/key_lookup",
        "spark/log_bytes",
        "spark/pushdown", "spark/queries", "spark/queue_files", "spark/reading",
        "spark/remote_log", "spark/room", "spark/sessions", "spark/source",
        "spark/stream_directory", "spark/stream_query", "spark/workers",
    },
    "storage": {
        "adoption", "block_cache", "descriptors", "disk", "mapping", "recover", "reindex", "repair",
        "serving", "store", "upkeep",
    },
    "replication": {
        "coordinator_calls", "coordinator_client", "coordinator_service", "coordinator_store",
        "readiness_service", "replica_service", "stream_service",
    },
    "node": {
        "admin", "budget", "client_server", "cold_work", "config", "config_pages",
        "config_sources", "http_server", "logs", "metrics", "node", "parts", "running", "task_tree",
    },
}  # fmt: skip
"""The rest: sockets, files, tasks, clocks, and what draws random numbers."""

WORLD = {
    "trio", "anyio", "os", "io", "socket", "mmap", "time", "random", "logging", "pathlib",
    "subprocess", "threading", "asyncio", "select", "selectors", "fcntl", "sqlite3", "secrets",
    "signal", "tempfile", "shutil", "starlette", "hypercorn", "prometheus_client", "structlog",
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


def files_of(*tables: dict[str, set[str]]) -> list[Path]:
    """The files that tables of module names list."""
    return [
        ROOT / top / f"{name}.py"
        for table in tables
        for top, names in sorted(table.items())
        for name in sorted(names)
    ]


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
    fronts = {path for path in sources(*PURE) if path.name == "__init__.py"}
    assert len(listed) == len(set(listed)), "a module is in two lists"
    present = set(sources(*PURE)) - fronts
    new, gone = sorted(map(label, present - set(listed))), sorted(map(label, set(listed) - present))
    assert not new, f"put into PURE, SEAM or SHELL: {', '.join(new)}"
    assert not gone, f"no longer there: {', '.join(gone)}"


VALUES = {
    ("node/config_sources.py", "listed"),
    ("node/config_sources.py", "nearest"),
    ("node/metrics.py", "ROLES"),
    ("node/admin.py", "no_topic"),
    ("storage/checkpoint.py", "Promise"),
    ("storage/reads.py", "ReadResult"),
    ("storage/reads.py", "ReadStatus"),
}
"""Plain values and functions of values that lie in a module which itself is not pure."""


def own_modules(path: Path) -> set[Path]:
    """The modules of ours that a file imports to run; the fronts of packages are looked through."""
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
    """The file behind ``from place import name``."""
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
