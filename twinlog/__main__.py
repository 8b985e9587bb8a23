"""Start the application: put its own root on the import path, then hand over to ``cli``.

The command line and the server are an extra; without it this says so in one sentence and ends with
78. Nothing else of the application is imported by users of the library.
"""

import signal
import sys
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path

NEEDED = ("cyclopts", "pydantic", "rich", "trio")
"""What tells whether the extra is installed."""

CONFIG = 78
"""Exit code: a part is not installed (the table is in ``cli.failures``)."""


INTERRUPTED = 130
"""Exit code of Ctrl-C before there was a command to interrupt."""


def main() -> int:
    """Run the command line and return its exit code.

    Ctrl-C while modules are still loading is Ctrl-C like any other: exit 130 and no trace. Once the
    outcome is decided a late Ctrl-C changes it no more: the interpreter, shutting down, would
    otherwise die of the signal and the exit code be lost.
    """
    try:
        code = _main()
    except KeyboardInterrupt:
        print(
            "interrupted: stopped by Ctrl-C\n  this command left nothing running", file=sys.stderr
        )
        code = INTERRUPTED
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    return code


def _main() -> int:
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        print(
            "error: the server and the command line are an extra: pip install 'twinlog[server]'",
            file=sys.stderr,
        )
        return CONFIG
    here = Path(__file__).parent
    bundled = files("twinlog").joinpath("_app").is_dir()  # in a wheel; not in a checkout
    sys.path.insert(0, str(here / "_app" if bundled else here.parent))
    from cli.app import main as run

    return run()


if __name__ == "__main__":
    sys.exit(main())
