"""``--watch``: a command that shows something shows it again, until Ctrl-C.

On a terminal the screen is cleared between two pictures; elsewhere each one follows the last, so
``-o jsonl --watch`` is a stream.
"""

from __future__ import annotations

from collections.abc import Callable
from time import sleep
from typing import Annotated

from cyclopts import Parameter

from cli.context import Context

WATCH_SECONDS = 2.0
"""Between two pictures."""

Watch = Annotated[bool, Parameter(name=["--watch", "-w"], negative=())]
"""The option of every command that lists."""


def repeat(context: Context, show: Callable[[], int], *, watch: bool) -> int:
    """Run ``show`` once, or again and again until Ctrl-C; return its exit code.

    The command's timeout is that of one picture.  A picture that fails ends nothing: the next one
    may show the cluster again.

    Raises:
        KeyboardInterrupt: Ctrl-C, the ordinary end of a watch.
    """
    from cli.failures import describe

    while watch:
        context.started = context.clock()
        context.printer.clear_screen()
        try:
            show()
        except Exception as error:
            failure = describe(error)
            if failure is None:
                raise
            context.printer.error(failure)
        sleep(WATCH_SECONDS)
    return show()
