"""``twinlog version`` and ``twinlog help``: what is installed, which kernels run, what there is."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed
from typing import Annotated

from cli.answer import Answer, Table, columns
from cli.context import Context
from cli.failures import Exit
from cli.help.pages import exits, text_for
from cli.parsing import PRIVATE

REBUILD = "python setup.py build_ext --inplace"
"""How a checkout gets its compiled kernels again."""


def version(*, context: Annotated[Context, PRIVATE]) -> int:
    """Show version, Python, system and the kernels in use."""
    from twinlog import kernels

    try:
        number = installed("twinlog")
    except PackageNotFoundError:
        number = "unknown"
    which = kernels.which()
    fields = {
        "twinlog": number,
        "kernels": which,
        "rebuild": REBUILD,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
    }
    rows = [(name, value) for name, value in fields.items() if name != "rebuild"]
    note = "" if which == "compiled" else f"the compiled kernels are faster: {REBUILD}"
    context.printer.answer(
        Answer(
            kind="Version",
            fields=fields,
            tables=[Table(columns("PART VALUE"), rows)],
            tail=note,
            names=[number],
        )
    )
    return Exit.OK


def help_command(*words: str, context: Annotated[Context, PRIVATE]) -> int:
    """Help of a command, or the table of exit codes.

    Args:
        words: A noun, a noun and a verb, or ``exit``.
    """
    if list(words) == ["exit"]:
        context.printer.answer(exits())
        return Exit.OK
    context.printer.line(text_for(list(words)))
    return Exit.OK
