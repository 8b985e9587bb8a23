"""``twinlog help``: a command, or the table of exit codes."""

from __future__ import annotations

from typing import Annotated

from cli.context import Context
from cli.failures import Exit
from cli.help.pages import exits, text_for
from cli.parsing import PRIVATE


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
