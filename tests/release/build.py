"""A release: wheel and source distribution with the changelog, checked and never uploaded.

    python -m tests.release.build [X.Y.Z] [--dry-run] [--out DIR]

``make release VERSION=X.Y.Z`` calls it. Both files are built from what the last commit holds, in a
folder apart, with the changelog that is composed there; each is installed into an environment of
its own and tried. Only when all of it has worked are the files moved to ``dist`` and the changelog
of the tree is written, its fragments deleted. ``--dry-run`` leaves the tree alone.

Not here: how the changelog is composed (`tests.release.changelog`).
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
from collections.abc import Iterator
from datetime import UTC, datetime
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.release.changelog import compose, faults
from tests.release.environments import Environment, call, uv

ROOT = Path(__file__).parents[2]
FRAGMENTS = Path("docs") / "changes.d"
CHANGELOG = "CHANGELOG.md"
KERNELS = ("compiled", "python")

NEXT = """\
{where} has what was checked; nothing is uploaded, tagged or committed. To go on:
  git commit -am "Release {version}" && git tag v{version}
  uv run twine upload dist/twinlog-{version}*      # the wheel is for this kind of machine only
Then raise the version in pyproject.toml."""

DRY = """\
{where} has what was checked, and CHANGELOG.md as it would be; the tree is as it was.
Nothing is uploaded."""


class Refused(Exception):
    """A release cannot be made; the text has a line for each reason."""


def git(root: Path, *words: str) -> bytes:
    """Return what a git command prints in a tree."""
    return subprocess.run(["git", *words], cwd=root, check=True, stdout=subprocess.PIPE).stdout


def fragments(root: Path) -> list[Path]:
    """Return the fragments of the next release."""
    return sorted(path for path in (root / FRAGMENTS).glob("*.md") if path.name != "README.md")


def declared(root: Path) -> str:
    """Return the version that ``pyproject.toml`` names."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return str(project["version"])


def reasons(root: Path, version: str, out: Path) -> Iterator[str]:
    """Yield each reason why a version cannot be released from a tree."""
    if not re.fullmatch(r"\d+\.\d+\.\d+", version):
        yield f"{version!r} is no version: write three numbers, as in 1.2.3"
    if version != (own := declared(root)):
        yield f"pyproject.toml has version {own}, not {version}"
    if dirty := git(root, "status", "--porcelain").decode().splitlines():
        first = dirty[0].strip()
        yield f"{len(dirty)} files differ from the last commit: commit them ({first}, ...)"
    for tag in (f"v{version}", version):
        if git(root, "tag", "--list", tag):
            yield f"the tag {tag} exists: take the next version"
    text = (root / CHANGELOG).read_text(encoding="utf-8")
    yield from faults(text, version, len(fragments(root)))
    if sorted(out.glob(f"twinlog-{version}*")):
        yield f"{out} has files of {version}: delete them first"


def export(root: Path, folder: Path) -> None:
    """Unpack what the last commit of a tree holds."""
    with tarfile.open(fileobj=BytesIO(git(root, "archive", "HEAD"))) as packed:
        packed.extractall(folder, filter="data")


def write_changelog(root: Path, version: str, date: str) -> str:
    """Compose the changelog of a tree and delete its fragments; return the text."""
    words = ["build", "--draft", "--version", version, "--date", date]
    rendered = call(sys.executable, "-m", "towncrier", *words, folder=root).stdout
    text = compose((root / CHANGELOG).read_text(encoding="utf-8"), version, date, rendered)
    keep_changelog(root, text)
    return text


def keep_changelog(root: Path, text: str) -> None:
    """Write the changelog of a tree, and delete the fragments that are part of it now."""
    (root / CHANGELOG).write_text(text, encoding="utf-8")
    for fragment in fragments(root):
        fragment.unlink()


def tried(found: Path, folder: Path, version: str) -> str:
    """Install a built file into a fresh environment and try it there; return what was seen.

    Raises:
        Refused: It says another version, lacks kernels, or the demo found a promise broken.
    """
    folder.mkdir()
    server = Environment(folder, f"twinlog[server] @ {found.as_uri()}")
    for kernels in KERNELS:
        told = json.loads(
            server.run("twinlog", "version", "-o", "json", TWINLOG_KERNELS=kernels).stdout
        )
        if (told["twinlog"], told["kernels"]) != (version, kernels):
            raise Refused(f"{found.name}, asked for {kernels} kernels, says it is {told}")
    done = server.run("twinlog", "demo", "-o", "json")
    demo = json.loads(done.stdout.splitlines()[-1])
    if demo["promises_kept"] is not True:
        raise Refused(f"{found.name}: the demo found a promise broken: {demo}")
    return f"{found.name}: both kinds of kernels, and the demo ({demo['acknowledged']} messages)"


def release(root: Path, version: str, out: Path, *, dry_run: bool) -> None:
    """Build, check and keep the files of a version.

    Args:
        root: The tree.
        version: The version to release.
        out: Where the files are put.
        dry_run: Leave the tree as it is.

    Raises:
        Refused: The tree cannot be released, or a file that was built does not work.
    """
    if why := list(reasons(root, version, out)):
        raise Refused("\n".join(why))
    date = f"{datetime.now(UTC):%Y-%m-%d}"
    with TemporaryDirectory(prefix="twinlog-release-") as name:
        apart, tree = Path(name), Path(name) / "tree"
        export(root, tree)
        changelog = write_changelog(tree, version, date)
        print(f"building {version} from the last commit")
        call(uv(), "build", "--out-dir", str(apart / "dist"), folder=tree)
        built = sorted((apart / "dist").glob("twinlog-*"))
        if [path.suffix for path in built] != [".whl", ".gz"]:
            raise Refused(f"a wheel and a source distribution should have been built, not {built}")
        strict = [sys.executable, "-m", "twine", "check", "--strict", *map(str, built)]
        call(*strict, folder=apart)
        for path in built:
            print(tried(path, apart / path.suffix[1:], version))
        out.mkdir(parents=True, exist_ok=True)
        for path in built:
            shutil.move(path, out / path.name)
        if dry_run:
            (out / CHANGELOG).write_text(changelog, encoding="utf-8")
        else:
            keep_changelog(root, changelog)
    print((DRY if dry_run else NEXT).format(where=out, version=version))


def main(words: list[str] | None = None) -> int:
    """Run the command; 0 when the release stands, else 1."""
    parser = argparse.ArgumentParser(
        prog="make release", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("version", nargs="?", default="", help="as pyproject.toml has it")
    parser.add_argument("--dry-run", action="store_true", help="leave the tree as it is")
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="where the files are put")
    given = parser.parse_args(words)
    try:
        release(ROOT, given.version or declared(ROOT), given.out.resolve(), dry_run=given.dry_run)
    except (Refused, AssertionError, subprocess.CalledProcessError) as error:
        print(f"not released, and the tree is as it was:\n{error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
