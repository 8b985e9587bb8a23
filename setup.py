"""Compute the list of packages and build the compiled kernels; pyproject.toml declares the rest.

The checkout's top folders `node`, `replication`, `storage` and `cli` are installed below
``twinlog._app``, so that the wheel brings one top-level name.

The extension is optional: without a C compiler (or Cython) the build succeeds and the plain-Python
twins run (docs/architecture.md). The digest of its sources goes into the module, so that the loader
can tell a stale build.
"""

import hashlib
import os
from pathlib import Path

from setuptools import Extension, setup

FOLDER = Path("twinlog") / "kernels"
NAMES = ("_compiled.pyx", "columns.pxi", "match.pxi", "messages.pxi", "single.pxi", "crc.h")
SOURCES = [FOLDER / name for name in NAMES]


def digest() -> str:
    """Return the SHA-256 of the kernel sources, as ``twinlog.kernels`` computes it."""
    total = hashlib.sha256()
    for source in SOURCES:
        total.update(source.read_bytes())
    return total.hexdigest()


def packages() -> dict[str, str]:
    """Return every package of the wheel with its folder in the checkout."""
    found = {}
    for top in ("twinlog", "node", "replication", "storage", "cli"):
        for front in sorted(Path(top).rglob("__init__.py")):
            name = ".".join(front.parent.parts)
            found[name if top == "twinlog" else f"twinlog._app.{name}"] = front.parent.as_posix()
    return found


def extensions() -> list[Extension]:
    """Return the kernels' extension; nothing where Cython is missing."""
    try:
        from Cython.Build import cythonize
    except ImportError:
        return []
    kernels = Extension(
        "twinlog.kernels._compiled",
        [str(SOURCES[0])],
        depends=[str(source) for source in SOURCES[1:]],
        include_dirs=[str(FOLDER)],
        define_macros=[("TWINLOG_DIGEST", f'"{digest()}"')],
        extra_compile_args=[] if os.name == "nt" else ["-O3", "-g0"],
    )
    built: list[Extension] = cythonize([kernels], quiet=True, build_dir="build")
    for extension in built:
        extension.optional = True  # cythonize drops what the constructor was told
    return built


FOLDERS = packages()
setup(packages=list(FOLDERS), package_dir=FOLDERS, ext_modules=extensions())
