"""Run one command: options, the function, an exit code.

    words --options.split--> global options + the rest --tree.find--> command
          --parsing.bind--> a call --> exit code
    any exception --failures.describe--> text on stderr + exit code

Nothing heavier than the standard library is imported before the command is known; help of the
whole tree needs neither cyclopts nor rich.

A stack trace never reaches the terminal.  Ctrl-C is an exit of its own (130) and says what is left
running.

Not here: what commands do.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, cast

from cli.context import Context
from cli.failures import Exit, Failure, bug, describe
from cli.options import Globals, Output, split
from cli.render import Printer
from cli.tree import NOUNS, find, of_noun

if TYPE_CHECKING:
    from cli.connection import Named
    from twinlog.session.tls_files import Tls


def main(words: Sequence[str] | None = None, environment: Mapping[str, str] | None = None) -> int:
    """Run the command line and return its exit code; never raises."""
    said = list(sys.argv[1:] if words is None else words)
    variables = dict(os.environ) if environment is None else environment
    printer = Printer(Globals())
    try:
        options, rest = split(said, variables)
        printer = Printer(options)
        context = Context(options=options, printer=printer, environment=variables)
        return _told(context, lambda: run(rest, context))
    except BrokenPipeError:
        # The reader of our output went away, as in `twinlog log dump DIR | head`.
        with suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return Exit.OK
    except BaseException as error:
        return report(error, printer)


def _told(context: Context, call: Callable[[], int]) -> int:
    """Run a command; ``-v`` says which cluster it is about and how long it took, ``-vv`` more."""
    if not context.options.verbose:
        return call()
    where = context.options.endpoints or (str(context.config_path() or "no cluster file"),)
    context.printer.detail(f"cluster: {', '.join(where)}")
    ask = context.question

    def traced(
        address: str,
        kind: int,
        fields: Mapping[str, object],
        timeout: float | None,
        named: Named | None,
        tls: Tls | None,
    ) -> dict[str, object]:
        from twinlog.wire.frames import Type

        began = time.monotonic()
        outcome: object = "no answer"
        try:
            answer = ask(address, kind, fields, timeout, named, tls)
            outcome = answer
            return answer
        except Exception as error:
            outcome = error
            raise
        finally:
            took = (time.monotonic() - began) * 1000
            context.printer.detail(
                f"{address} {Type(kind).name} {dict(fields)} -> {outcome} ({took:.1f} ms)", level=2
            )

    context.question = traced
    try:
        return call()
    finally:
        context.printer.detail(f"took {time.monotonic() - context.started:.3f} s")


def report(error: BaseException, printer: Printer) -> int:
    """Print what went wrong and return the exit code that goes with it."""
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else Exit.OK
    found = describe(unwrap(error)) or bug(error)
    with suppress(OSError):
        printer.error(found)
    return found.exit


def unwrap(error: BaseException) -> BaseException:
    """The one cause inside groups of one, as task groups raise them; Ctrl-C wins over all."""
    while isinstance(error, BaseExceptionGroup):
        group = cast("BaseExceptionGroup[BaseException]", error)
        if group.subgroup(KeyboardInterrupt) is not None:
            return KeyboardInterrupt()
        if len(group.exceptions) != 1:
            return group
        error = group.exceptions[0]
    return error


def run(words: list[str], context: Context) -> int:
    """Find the command, bind its arguments and call it.

    Raises:
        Failure: An unknown command or option (exit 64), or what the command raised.
    """
    if context.options.version:
        words = ["version"]
    elif not words:
        from cli.help.pages import overview

        if context.options.help:
            context.printer.line(overview())
            return Exit.OK
        print(overview(), file=context.printer.err)
        return Exit.USAGE
    if context.options.help:
        from cli.help.pages import text_for

        context.printer.line(text_for(_name_only(words)))
        return Exit.OK
    command, rest = find(words)
    if command is None:
        from cli.help.pages import unknown_command

        raise unknown_command(words)
    if context.options.output is Output.SCHEMA:
        from cli.answer import dump
        from cli.help.schemas import schema_of

        context.printer.line(dump(schema_of(command.name)))
        return Exit.OK
    from cli.parsing import bind

    return int(bind(command, rest, context)())


def _name_only(words: Sequence[str]) -> list[str]:
    """The words that can be a command's name: ``topic show orders`` is ``topic show``."""
    noun = words[0]
    if noun not in NOUNS:
        return list(words[:1])
    verbs = any(len(command.path) > 1 for command in of_noun(noun))
    return list(words[: 2 if verbs else 1])


__all__ = ["Context", "Exit", "Failure", "main", "report", "run", "unwrap"]
