"""From the words behind a command's name to a call of its function, by cyclopts.

A command is a plain function: positional arguments, keyword-only options with a docstring each, and
a `Context` marked `PRIVATE`, which does not come from the words.  Only the module of the command
that runs is imported.

What cyclopts refuses becomes a `Failure` (exit 64).

Not here: global options (``options``), which command it is (``tree``).
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Callable, Sequence
from typing import Annotated, cast

from cyclopts import App, CycloptsError, Parameter
from cyclopts.exceptions import (
    CoercionError,
    MissingArgumentError,
    RepeatArgumentError,
    UnknownOptionError,
    UnusedCliTokensError,
)

from cli.context import Context
from cli.failures import Exit, Failure, nearest
from cli.tree import AGREEMENTS, Command

PRIVATE = Parameter(parse=False)
"""Marks a parameter that the words of a call do not set."""

Yes = Annotated[bool, Parameter(name=["--yes", "-y"])]
"""The option that answers a question in the call."""

OPTIONAL = {"--stale-ok": "any"}
"""Options whose value, a number with a unit, may be left out, and what that means."""

NEGATIVE = re.compile(r"-\d")

Function = Callable[..., int]


def load(command: Command) -> Function:
    """Import the function of a command."""
    module, _, name = command.target.partition(":")
    return cast("Function", getattr(importlib.import_module(module), name))


def application(command: Command) -> App:
    """A cyclopts application with this one command."""
    app = App(
        name=f"twinlog {command.name}",
        help_flags=[],
        version_flags=[],
        default_parameter=Parameter(negative_iterable=()),
        suppress_keyboard_interrupt=False,
    )
    app.default(load(command))
    return app


def bind(command: Command, words: Sequence[str], context: Context) -> Callable[[], int]:
    """Return the call that ``words`` ask for.

    Raises:
        Failure: An unknown option, a value of the wrong kind, one too many or too few (exit 64).
    """
    try:
        function, bound, ignored = application(command).parse_args(
            joined(words), exit_on_error=False, print_error=False, verbose=False
        )
    except CycloptsError as error:
        raise _refusal(command, error) from None
    private = dict.fromkeys(ignored, context)
    run = cast("Function", function)
    return lambda: run(*bound.args, **{**bound.kwargs, **private})


def joined(words: Sequence[str]) -> list[str]:
    """Join an option with a value that begins like an option but is a number or a range.

    An option whose value may be left out gets the value that stands for that.

    >>> joined(["orders", "--range", "-10:", "--follow"])
    ['orders', '--range=-10:', '--follow']
    >>> joined(["--stale-ok", "orders", "--stale-ok", "10s"])
    ['--stale-ok=any', 'orders', '--stale-ok=10s']
    """
    found: list[str] = []
    for word in [*words, "--"]:
        before = found[-1] if found else ""
        if before in OPTIONAL:
            fits = word[:1].isdigit()
            found[-1] = f"{before}={word if fits else OPTIONAL[before]}"
            if fits:
                continue
        if NEGATIVE.match(word) and before.startswith("--") and "=" not in before:
            found[-1] = f"{before}={word}"
        else:
            found.append(word)
    return found[:-1] if found[-1:] == ["--"] else found


def _refusal(command: Command, error: CycloptsError) -> Failure:
    hint = f"its arguments: twinlog {command.name} --help"
    argument = error.argument
    name = ""
    close: tuple[str, ...] = ()
    if argument is not None:
        positional = argument.field_info.kind is not inspect.Parameter.KEYWORD_ONLY
        name = argument.field_info.name.upper() if positional else argument.name
    match error:
        case UnknownOptionError():
            said = error.token.keyword or error.token.value
            text = f'{command.name} has no option "{said}"'
            known = {name for one in error.argument_collection if one.parse for name in one.names}
            known -= AGREEMENTS | {f"--no-{one.removeprefix('--')}" for one in known}
            close = nearest(said.partition("=")[0], sorted(known), "--")
        case UnusedCliTokensError():
            left = " ".join(error.unused_tokens or ())
            text = f'{command.name} takes no further argument "{left}"'
        case MissingArgumentError():
            text = f"{command.name} needs {name}" if name else str(error)
        case RepeatArgumentError():
            text = f"{name or 'an option'} is given twice"
        case CoercionError() if error.token is not None:
            text = f'{name} is "{error.token.value}", which is not valid'
        case _:
            text = str(error).strip()
    return Failure(Exit.USAGE, text, hints=(*close, hint))
