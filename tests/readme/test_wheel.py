"""The wheel: what `pip install twinlog` brings, and that it works away from the checkout.

The wheel is built from a copy of the sources, because a build in the checkout would take along what
an older build left in its build folder; uv builds it from the source distribution, so that lacks
nothing either. It is installed twice: alone, as a library, and with the
server extra. Both environments are fresh; nothing of the checkout is on their path.

Not here: what the demo promises (``tests/processes/commands/test_demo``).
"""

from __future__ import annotations

import json
import shutil
import zipfile
from pathlib import Path

import pytest

from tests.readme.upgrade import roll
from tests.release.environments import Environment, call, uv
from tests.stores.golden import manifest, unpack

ROOT = Path(__file__).parents[2]
FOLDERS = ("twinlog", "storage", "replication", "node", "cli")
FILES = ("pyproject.toml", "setup.py", "README.md", "LICENSE", "pyspark_twinlog.py")

pytestmark = [pytest.mark.processes, pytest.mark.slow]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from the source distribution, which is built from a copy of the sources."""
    folder = tmp_path_factory.mktemp("sources")
    built = shutil.ignore_patterns("__pycache__", "*.so", "*.c", "_digest.py")
    for name in FOLDERS:
        shutil.copytree(ROOT / name, folder / name, ignore=built)
    for name in FILES:
        shutil.copy(ROOT / name, folder / name)
    call(uv(), "build", "--out-dir", "dist", folder=folder)
    (found,) = (folder / "dist").glob("twinlog-*.whl")
    return found


@pytest.fixture(scope="module")
def library(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """Without any extra, as a user of the client has it."""
    return Environment(tmp_path_factory.mktemp("library"), f"twinlog @ {wheel.as_uri()}")


@pytest.fixture(scope="module")
def server(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """With the server extra."""
    return Environment(tmp_path_factory.mktemp("server"), f"twinlog[server] @ {wheel.as_uri()}")


def test_the_wheel_holds_every_module_and_no_other_name(wheel: Path) -> None:
    """One top-level name and the one Spark looks for; every source; the marker; the demo data."""
    names = set(zipfile.ZipFile(wheel).namelist())
    tops = {name.split("/")[0] for name in names if ".dist-info/" not in name}
    assert tops == {"twinlog", "pyspark_twinlog.py"}
    expected: set[str] = set()
    for path in (path for top in FOLDERS for path in (ROOT / top).rglob("*.py")):
        place = path.relative_to(ROOT).as_posix()
        expected.add(place if place.startswith("twinlog/") else f"twinlog/_app/{place}")
    expected |= {"twinlog/py.typed", "twinlog/_app/cli/demo/data/flights-2013-01.csv.gz"}
    expected.add("pyspark_twinlog.py")
    assert expected <= names
    assert {name for name in names if name.endswith(".py")} <= expected


def test_the_library_alone(library: Environment) -> None:
    """The client is importable; the command names its extra in one sentence and ends with 78."""
    code = "import twinlog; print(twinlog.Client.__name__, twinlog.Client.__module__)"
    assert library.run("python", "-c", code).stdout == "Client twinlog.client.blocking\n"
    for words in (("twinlog", "version"), ("python", "-m", "twinlog", "demo")):
        done = library.run(*words, expect=78)
        assert done.stdout == ""
        assert done.stderr.count("\n") == 1
        assert "twinlog[server]" in done.stderr


def test_async_needs_its_extra_and_says_so(library: Environment) -> None:
    """``AsyncClient`` without anyio raises one exception that names the extra."""
    done = library.run("python", "-c", "import twinlog; twinlog.AsyncClient", expect=1)
    assert "twinlog[async]" in done.stderr.splitlines()[-1]


def test_only_twinlog_is_importable(server: Environment) -> None:
    """``node`` or ``cli`` would clash with other people's modules."""
    code = (
        "import json, twinlog\n"
        "from importlib.util import find_spec\n"
        "from importlib.resources import files\n"
        "names = ['cli', 'node', 'replication', 'storage', 'twinlog']\n"
        "print(json.dumps([[n for n in names if find_spec(n)],"
        " files('twinlog').joinpath('py.typed').is_file(), twinlog.__file__]))"
    )
    found, typed, place = json.loads(server.run("python", "-c", code).stdout)
    assert found == ["twinlog"]
    assert typed is True
    assert Path(place).is_relative_to(server.bin.parent)


def test_the_command_works_from_anywhere(server: Environment) -> None:
    """``twinlog version``, and a RocketMQ store through ``python -m twinlog``."""
    version = json.loads(server.run("twinlog", "version", "-o", "json").stdout)
    assert version["kernels"] == ("compiled" if shutil.which("cc") else "python")
    store = unpack("01-basic", server.folder / "golden")
    told = server.run("python", "-m", "twinlog", "log", "info", str(store), "-o", "json").stdout
    assert json.loads(told)["end"] == manifest("01-basic")["log"]["max_offset"]


def test_the_demo_works_from_the_wheel(server: Environment) -> None:
    """It starts processes of itself and brings its own flights."""
    done = server.run("twinlog", "demo", "-o", "json")
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["promises_kept"] is True
    assert found["flights"] == 27_004


def test_a_cluster_is_upgraded_node_by_node(server: Environment, tmp_path: Path) -> None:
    """From the installed wheel to this tree, under load.

    No release is published yet, so both are this tree's; ``make upgrade FROM=COMMIT`` takes an
    older one.
    """
    assert roll([str(server.bin / "twinlog")], tmp_path, same=True) > 0
