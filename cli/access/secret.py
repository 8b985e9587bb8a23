"""``twinlog access init``: the operator's password, the first user of a cluster."""

from __future__ import annotations

import os
import secrets
from typing import Annotated

from cli.answer import Answer
from cli.context import Context
from cli.failures import Exit
from cli.parsing import PRIVATE

LINES = "[access] enabled = true"


def init(*, renew: bool = False, context: Annotated[Context, PRIVATE]) -> int:
    """Make the file with the password of ``operator``, who may do everything.

    Every node needs the same file, and commands that find it beside the cluster file log in with
    it. It is how the first user comes to be, and the way back when no other password is known. What
    exists is not touched.

    Args:
        renew: Make another password in its place; nodes take it when they are started again.
    """
    config = context.config()
    path = config.path.parent / config.access.secret
    there = path.exists()
    if renew or not there:
        path.parent.mkdir(parents=True, exist_ok=True)
        new = path.with_name(f"{path.name}.new-{os.getpid()}")
        handle = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(secrets.token_urlsafe(32) + "\n")
        new.replace(path)
    outcome = "made" if renew or not there else "exists"
    lines = [] if config.access.enabled else [f"for the cluster file: {LINES}"]
    context.printer.answer(
        Answer(
            kind="AccessInit",
            fields={"file": str(path), "outcome": outcome, "enabled": config.access.enabled},
            head=f"{path}: {outcome}; readable by its owner only",
            tail="\n".join(lines),
            names=[str(path)],
            next="twinlog user add NAME" if config.access.enabled else "twinlog config check",
        )
    )
    return Exit.OK
