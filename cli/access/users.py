"""``twinlog user``: users, their teams and passwords.

A password is hashed here: nodes, their log and the wire get what it can be compared with.
"""

from __future__ import annotations

import getpass
import secrets
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from cli.answer import Answer, Table
from cli.cluster.patience import waiting_client
from cli.context import Context
from cli.failures import Exit, Failure
from cli.fields import Fields, tables
from cli.parsing import PRIVATE
from cli.watch import Watch, repeat
from storage.state.access import User, user_refusal, user_row
from twinlog.client.blocking import Client
from twinlog.errors import UsageError
from twinlog.session.login import new_verifier, password_in
from twinlog.wire.frames import Type

Teams = Annotated[tuple[str, ...], Parameter(name="--team", consume_multiple=False)]


def add(
    name: str,
    /,
    *,
    team: Teams = (),
    new_password_file: Path | None = None,
    generate: bool = False,
    certificate: bool = False,
    context: Annotated[Context, PRIVATE],
) -> int:
    """Make a user; it may do nothing until a rule says so.

    The password is asked for, unless an option says where it comes from.

    Args:
        name: Letters, digits, ``.``, ``_``, ``-`` and ``@``, at most 64; for clients with
            certificates the common name in theirs.
        team: A team that the user is in, without ``@``; repeatable.
        new_password_file: File whose first line is the password; ``-`` is stdin.
        generate: Make a password and print it.
        certificate: The user has no password and shows a certificate.
    """
    if any(one["user"] == name for one in _listed(context)[0]):
        hints = (f"another password: twinlog user password {name}",)
        raise Failure(Exit.NO, f"there is a user {name} already; nothing was changed", hints=hints)
    made, password = "", None
    if not certificate:
        password, made = _password(context, name, new_password_file, generate=generate)
    user = User(name, tuple(sorted(set(team))), new_verifier(password) if password else None)
    _store(context, user)
    return _say(context, "UserAdd", user, "made", made)


def password(
    name: str,
    /,
    *,
    new_password_file: Path | None = None,
    generate: bool = False,
    context: Annotated[Context, PRIVATE],
) -> int:
    """Give a user another password; connections that it has are closed.

    Args:
        name: Who.
        new_password_file: File whose first line is the password; ``-`` is stdin.
        generate: Make a password and print it.
    """
    found = next((one for one in _listed(context)[0] if one["user"] == name), None)
    if found is None:
        raise _no_user(name)
    secret, made = _password(context, name, new_password_file, generate=generate)
    teams = found.get("teams")
    kept = tuple(str(one) for one in teams) if isinstance(teams, list) else ()  # pyright: ignore
    user = User(name, kept, new_verifier(secret))
    _store(context, user)
    return _say(context, "UserPassword", user, "has another password", made)


def remove(name: str, /, *, context: Annotated[Context, PRIVATE]) -> int:
    """Remove a user and the rules that name it; connections that it has are closed.

    Args:
        name: Who.
    """
    change(context, {"gone": [name]})
    return _say(context, "UserRemove", User(name), "removed", "")


def list_users(*, watch: Watch = False, context: Annotated[Context, PRIVATE]) -> int:
    """List the users, with their teams.

    Args:
        watch: Show it again every 2 s, until Ctrl-C.
    """
    return repeat(context, lambda: _list(context), watch=watch)


def _list(context: Context) -> int:
    items = [
        {**one, "teams": ",".join(map(str, _texts(one.get("teams"))))}
        for one in _listed(context)[0]
    ]
    context.printer.answer(
        Answer(
            kind="UserList",
            fields={"users": items},
            tables=[Table.of("USER PASSWORD RULES> TEAMS", items)],
            items=items,
            names=[f"user/{one['user']}" for one in items],
        )
    )
    return Exit.OK


def asked(client: Client, fields: Fields) -> Fields:
    """Put a request about users and rules to the master.

    Raises:
        Failure: There is no such user or rule (exit 66), or it is no name (exit 64).
    """
    try:
        return dict(client.call("master", Type.ACCESS, fields).fields)
    except UsageError as error:
        if error.code == "unknown-user":
            raise _no_user(error.text.rpartition(" ")[2]) from None
        if error.code == "unknown-rule":
            hints = ("the rules: twinlog rule list",)
            raise Failure(Exit.MISSING, error.text, hints=hints) from None
        if error.code == "access":
            raise Failure(Exit.USAGE, f"{error.text}; nothing was changed") from None
        raise


def change(context: Context, fields: Fields) -> None:
    """Change users and rules; returns when the log has confirmed it.

    Raises:
        Failure: See `asked`.
    """
    with waiting_client(context) as client:
        asked(client, {"op": "change", **fields})


def _listed(context: Context) -> tuple[list[Fields], list[Fields]]:
    with waiting_client(context) as client:
        found = asked(client, {"op": "list"})
    return tables(found.get("users")), tables(found.get("rules"))


def _store(context: Context, user: User) -> None:
    wrong = user_refusal(user)
    if wrong is not None:
        raise Failure(Exit.USAGE, f"{user.name!r} cannot be a user: {wrong}")
    change(context, {"users": [user_row(user)]})


def _password(context: Context, name: str, file: Path | None, *, generate: bool) -> tuple[str, str]:
    """Return the new password, and it again if it was made here."""
    if generate:
        made = secrets.token_urlsafe(24)
        return made, made
    if file is not None and str(file) != "-":
        return password_in(str(file)), ""
    if file is not None:
        return context.stdin.readline().rstrip("\r\n"), ""
    if not context.stdin.isatty():
        hints = ("give a file: --new-password-file FILE (- is stdin)", "or make one: --generate")
        text = "this asks for a password, and there is no terminal to answer it"
        raise Failure(Exit.USAGE, text, hints=hints)
    first = getpass.getpass(f"new password of {name}: ", stream=sys.stderr)
    if getpass.getpass("again: ", stream=sys.stderr) != first:
        raise Failure(Exit.USAGE, "the two passwords differ; nothing was changed")
    return first, ""


def _say(context: Context, kind: str, user: User, outcome: str, made: str) -> int:
    fields: Fields = {"user": user.name, "teams": list(user.teams), "outcome": outcome}
    if made:
        fields["password"] = made
    new = kind == "UserAdd"
    context.printer.answer(
        Answer(
            kind=kind,
            fields=fields,
            head=f"user {user.name}: {outcome}",
            tail=f"password: {made}" if made else "",
            names=[f"user/{user.name}"],
            next=f"twinlog rule add {user.name} read topic:NAME" if new else "",
        )
    )
    return Exit.OK


def _no_user(name: str) -> Failure:
    return Failure(
        Exit.MISSING, f"there is no user {name}", hints=("the users: twinlog user list",)
    )


def _texts(value: object) -> Sequence[object]:
    return value if isinstance(value, list) else []  # pyright: ignore
