"""A supervisor whose processes are tiny: for tests of starting, killing and dying together.

Run as a program with a directory: owns ``coordinator``, ``n1`` and ``n2``, each of which says that
it is ready and waits for TERM; ``told`` has the nodes whose end was told.  ``--fail NAME`` makes
one of them end at once.
"""

from __future__ import annotations

import sys
from pathlib import Path

from cli.app import report
from cli.config_file import COORDINATOR
from cli.dev.supervisor import Supervisor
from cli.options import Globals
from cli.render import Printer

PROCESS = """
import json, os, pathlib, signal, sys
folder = pathlib.Path(sys.argv[1]) / "twinlog"
folder.mkdir(parents=True, exist_ok=True)
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
print("hello from", sys.argv[1], flush=True)
if sys.argv[2] == "fail":
    print("error: port 7410 is taken", flush=True)
    sys.exit(69)
aside = folder / "run.new"
aside.write_text(json.dumps({"pid": os.getpid(), "ports": {"coordinator": 7499}}))
aside.rename(folder / "run.json")
while True:
    signal.pause()
"""


class Tiny(Supervisor):
    """Owns processes that do nothing."""

    fails = ""

    def words(self, name: str, config: Path) -> tuple[str, ...]:
        """Start the tiny process instead of a node."""
        data = str(config.parent / name)
        return (sys.executable, "-c", PROCESS, data, "fail" if name == self.fails else "run")


def main() -> int:
    """Serve until told to stop."""
    directory = Path(sys.argv[1])
    Tiny.fails = sys.argv[3] if len(sys.argv) > 3 else ""
    nodes = {name: directory / name for name in ("n1", "n2")}

    def tell(name: str) -> None:
        with (directory / "told").open("a", encoding="utf-8") as told:
            told.write(f"{name}\n")

    coordinators = {COORDINATOR: directory / COORDINATOR}
    try:
        return Tiny(directory, nodes, coordinators, tell=tell).serve()
    except BaseException as error:
        return report(error, Printer(Globals()))


if __name__ == "__main__":
    sys.exit(main())
