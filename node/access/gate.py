"""The gate of a node: who a user is, and whether a request may be carried out.

Rules are those of the store (`storage.reads.StoreReads.access`): what was removed binds a master
from its append, what was made binds every node from its confirm, and a cut takes both back. A node
that does not lead enforces what it has confirmed.

Every refusal and every administration is an event. Nothing here waits or touches a file.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Mapping
from hashlib import sha256
from typing import Final

from node.access.grants import BUILT_IN, Grants
from storage.state.access import NOBODY, OPERATOR, Access, User
from twinlog.errors import Denied
from twinlog.wire import rights, scram
from twinlog.wire.frames import Type, type_name
from twinlog.wire.schema import CALLS

NEEDS: Final[Mapping[int, rights.Needs]] = {int(kind): call.needs for kind, call in CALLS.items()}

AUDITED: Final = frozenset({Type.TOPIC, Type.GROUP, Type.ADMIN, Type.ACCESS})
"""Requests that make an event when they are allowed by a right to manage or operate."""


class Gate:
    """See the module.

    Args:
        access: Returns the users and rules that bind now, the same object until they change.
        secret: The operator's password.
        tell: Reports an event.
        draw: Makes a random number as text, for one login.
    """

    def __init__(
        self,
        access: Callable[[], Access],
        secret: str,
        tell: Callable[..., None],
        draw: Callable[[], str],
    ) -> None:
        self._access = access
        self.draw = draw
        self._tell = tell
        self._seen = NOBODY
        self._swept = NOBODY
        self._grants: dict[str, Grants] = {}
        self._key = hmac.digest(secret.encode(), b"twinlog salts", "sha256")
        operator = User(OPERATOR, (), scram.verifier(secret, self._salt(OPERATOR)))
        self._operator = Grants(operator, [BUILT_IN])
        self._passwords: dict[str, tuple[scram.Verifier, bytes]] = {}
        self.denied = 0
        """Requests and logins that were refused."""

    def _salt(self, user: str) -> bytes:
        return hmac.digest(self._key, user.encode(), "sha256")[: scram.SALT_BYTES]

    def moved(self) -> bool:
        """Whether users or rules may have changed since this was last asked.

        It has a mark of its own: a request that was admitted meanwhile has taken the new ones, and
        the connections of who lost a right are still to be looked through.
        """
        before, self._swept = self._swept, self.take()
        return self._swept is not before

    def take(self) -> Access:
        """Take the users and rules that bind now, and return them."""
        access = self._access()
        if access is not self._seen:
            self._seen = access
            self._grants.clear()
        return access

    def of(self, name: str | None) -> Grants | None:
        """Return what a user may do; None: there is no such user."""
        access = self.take()
        if name is None:
            return None
        if name == OPERATOR:
            return self._operator
        found = self._grants.get(name)
        user = access.users.get(name)
        if found is None and user is not None:
            found = self._grants[name] = Grants(user, access.rules_of(user))
        return found

    def by_certificate(self, name: str | None) -> str | None:
        """Return the user that a certificate names; the operator is known by the secret alone."""
        return None if name is None or name == OPERATOR else name

    # ── passwords ───────────────────────────────────────────────────────────────────────────────

    def verifier(self, user: str) -> scram.Verifier:
        """Return what a login is held against; of a user that is not there, one that nothing fits.

        Salt and iterations of both look alike, the same at each try and on each node.
        """
        found = self.of(user)
        kept = found.user.verifier if found is not None else None
        none = hmac.digest(self._key, b"no user: " + user.encode(), "sha256")
        return kept or scram.Verifier(self._salt(user), scram.ITERATIONS, none, none)

    def _knows(self, user: str, kept: scram.Verifier, password: str) -> bool:
        digest = sha256(password.encode()).digest()
        before = self._passwords.get(user)
        if before is not None and before[0] == kept:
            return hmac.compare_digest(before[1], digest)
        right = scram.matches(kept, password)
        if right:
            self._passwords[user] = kept, digest
        return right

    def operates(self, user: str) -> Callable[[str], bool]:
        """Return what says whether a user who operates the cluster logs in with a password.

        It is for a thread: the first time it takes milliseconds. What it needs of users and rules
        is taken before, on the loop, which alters them.
        """
        kept, grants = self.verifier(user), self.of(user)
        may = grants is not None and grants.may(rights.OPERATE)

        def logs_in(password: str) -> bool:
            right = self._knows(user, kept, password) and may
            if not right:
                self.stranger(user[:64], "http")
            return right

        return logs_in

    # ── requests ────────────────────────────────────────────────────────────────────────────────

    def admit(self, user: str | None, kind: int, fields: Mapping[str, object], peer: str) -> None:
        """Let a request pass whose fields have the right shape.

        Raises:
            Denied: It needs a right that its user has not, or there is no such user.
        """
        asked = NEEDS[kind]
        if asked is rights.anybody:
            return
        grants = self.of(user)
        if grants is None:
            raise self.stranger(user, peer)
        for need in asked(fields):
            self.check(grants, need, kind, peer)
            if kind in AUDITED and need[0] in ("manage", "operate"):
                op = str(fields.get("op"))[:32]
                what = need[2] if need[1] == "cluster" else f"{need[1]}:{need[2]}"
                facts = {"request": type_name(kind), "op": op, "what": what}
                self._tell("access_used", "info", user=grants.user.name, peer=peer, **facts)

    def check(self, grants: Grants, need: rights.Need, kind: int, peer: str) -> None:
        """Raise `Denied`, and tell of it, if a right is missing."""
        if not grants.may(need):
            raise self._refused(grants, need, kind, peer)

    def stranger(self, user: str | None, peer: str) -> Denied:
        """Return the error for a request of someone who is not known; it is an event."""
        self.denied += 1
        self._tell("access_denied", "warning", user=user or "", peer=peer, kind="login")
        if user is None:
            text = "this cluster asks who you are"
            hint = "log in: --user NAME --password-file FILE, or Client(user=, password=)"
        else:
            text = f"there is no user {user} now"
            hint = "ask who operates the cluster"
        return Denied(text, code="login", hint=hint)

    def _refused(self, grants: Grants, need: rights.Need, kind: int, peer: str) -> Denied:
        right, thing, name = need
        user, what = grants.user.name, thing if thing == "cluster" else f"{thing}:{name}"
        self.denied += 1
        facts = {"user": user, "right": right, "what": what}
        request = type_name(kind)
        self._tell("access_denied", "warning", peer=peer, kind=request, **facts)
        wanted = "read" if right == "see" else right
        text = f"{user} may not {right} {thing if thing == 'cluster' else f'{thing} {name}'}"
        hint = f"an operator allows it: twinlog rule add {user} {wanted} {what}"
        return Denied(text, hint=hint, **facts)
