"""Promises: what this node has made durable about the register before it acts on it.

A promise is (epoch, session, register id, revision, tag, group state), fsynced. Nothing of an epoch
is said or written before its promise is on the disk, so a process that dies and comes back cannot
act for an older master than the one it has already obeyed.

One promise is saved at a time; what arrives meanwhile is part of the next one. Not here: what is
done with a promised state (``replica``).
"""

from __future__ import annotations

import json

from replication.core import commands
from replication.core.context import Context
from replication.register.group_state import GroupState
from storage import Promise


class Promises:
    """See the module.

    Args:
        context: Holds the newest promise and the newest state.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._saving: Promise | None = None

    def refuses(self, state: GroupState) -> bool:
        """Whether ``state`` is of another register, or older than what this node has seen."""
        if self.may_change_register(state):
            self._forget_register()
        promise, newest = self._context.promise, self._context.newest
        if promise.register_id and state.register_id != promise.register_id:
            self._context.alarm(
                "other-register", ours=promise.register_id, theirs=state.register_id
            )
            return True
        floor = promise.revision
        if newest is not None and newest.revision > floor:
            floor = newest.revision
        if self.is_older(state, floor):
            return True
        known = promise if state.revision == promise.revision else newest
        if known is not None and state.revision == known.revision and state.tag != known.tag:
            self._context.alarm("register-branched", revision=state.revision)
            return True
        if state.epoch < promise.epoch:
            self._context.alarm("register-went-back", promised=promise.epoch, epoch=state.epoch)
            return True
        return False

    def may_change_register(self, state: GroupState) -> bool:
        """Whether this node is bound to another register and may follow this one instead.

        It began with a coordinator that had lost its register, and took part in nothing since: no
        epoch, no byte. Then what it promised there binds it to nothing.
        """
        context, promise = self._context, self._context.promise
        other = promise.register_id and promise.register_id != state.register_id
        unused = promise.epoch == 0 and context.log.committed == 0 and self._saving is None
        return bool(other) and unused and state.epoch > 0

    def _forget_register(self) -> None:
        context = self._context
        context.promise, context.newest, context.session = Promise(), None, 0
        context.want_revision = (0, 0)

    def is_older(self, state: GroupState, floor: int) -> bool:
        """Whether a state is older than what this node has seen."""
        return state.revision < floor

    def save(self) -> None:
        """Have the newest state and revision fsynced, unless they are or a save is under way."""
        if self._saving is not None:
            return
        context, old = self._context, self._context.promise
        newest = context.newest
        epoch, register_id, revision, tag, state = (
            old.epoch, old.register_id, old.revision, old.tag, old.state,
        )  # fmt: skip
        if newest is not None and newest.revision >= revision:
            epoch, register_id = max(epoch, newest.epoch), newest.register_id
            revision, tag = newest.revision, newest.tag
            state = json.dumps(newest.to_json(), sort_keys=True).encode()
        if context.want_revision[0] > revision:
            revision, tag = context.want_revision
        promise = Promise(epoch, context.session or old.session, register_id, revision, tag, state)
        if promise == old:
            return
        self._saving = promise
        context.do(commands.SavePromise(promise))

    def on_saved(self, promise: Promise) -> bool:
        """Take the end of a save; return whether nothing newer has to be saved first."""
        self._context.promise = promise
        self._saving = None
        self.save()
        return self._saving is None

    def has_promised(self, state: GroupState) -> bool:
        """Whether the promise for ``state`` is on the disk."""
        promise = self._context.promise
        return promise.revision >= state.revision and promise.epoch >= state.epoch
