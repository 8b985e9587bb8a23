"""A client for a command, with a person waiting: what it waits for is said at once.

A client keeps trying until the command's time is over, so that a failover in between goes unnoticed
by producers and readers.  A person must not sit in front of a silent terminal meanwhile: when a
command takes longer than `PATIENCE_SECONDS`, the cluster is looked at, and if writes do not work
the sentence about it is printed with the command that goes on.  The same sentence is the error when
the time is over.

Not here: the sentences (``health``), retrying (``twinlog.session``).
"""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace

from cli.cluster.health import Grade, Problem, judge
from cli.cluster.view import look
from cli.context import Context
from cli.failures import Exit, Failure, TimeOver
from twinlog.client.blocking import Client
from twinlog.errors import TwinlogError, UnavailableError
from twinlog.units import format_duration

PATIENCE_SECONDS = 0.5
"""A command that is done by then says nothing; most are done in a tenth of it."""


@contextmanager
def waiting_client(context: Context, *, timeout: float | None = None) -> Generator[Client]:
    """A client of the cluster that says what it waits for; closed at the end.

    Args:
        context: Of the command.
        timeout: Seconds for each of the client's calls; None: what is left of the command's time.

    Raises:
        Failure: The time is over and the cluster takes no writes: why, and what to do (exit 69).
    """
    seconds = timeout or context.left()
    notice = threading.Timer(PATIENCE_SECONDS, _say, (context, seconds))
    notice.daemon = True
    with context.client(timeout=timeout) as client:
        notice.start()
        try:
            yield client
        except (UnavailableError, TimeOver) as error:
            trouble = _trouble(context)
            if trouble is None:
                raise
            facts, hints = (error.text,), (f"go on with: {trouble.command}",)
            raise Failure(Exit.UNAVAILABLE, trouble.text, facts=facts, hints=hints) from error
        finally:
            notice.cancel()


def _say(context: Context, seconds: float | None) -> None:
    trouble = _trouble(context)
    if trouble is not None:
        how_long = "" if seconds is None else f" up to {format_duration(round(seconds))}"
        context.printer.note(f"{trouble.text}; waiting{how_long}\n  next: {trouble.command}")


def _trouble(context: Context) -> Problem | None:
    """Why writes do not work; None when they do, or when that is unknown."""
    own = replace(context, started=context.clock())
    try:
        problems = judge(look(own)).problems
    except (Failure, TwinlogError, OSError):
        return None
    return next((one for one in problems if one.grade is Grade.UNAVAILABLE), None)
