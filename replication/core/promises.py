"""Promises: group states that this node has made durable before it acts on them (R13).

A promise is (epoch, session, register id, revision, tag, group state), fsynced. Nothing of an epoch
is sent or written before its promise is durable, so a process that restarts cannot act for an older
master than one it has already obeyed.

One promise is saved at a time; states that arrive meanwhile are part of the next one. Not here:
acting on a promised state (``replica``).
"""

from __future__ import annotations

import json

from replication.core import commands
from replication.core.context import Context
from replication.register.group_state import GroupState
from storage import Promise


class Promises:
    """See the module's text.

    Args:
        context: Holds the newest promise and the newest state.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._saving: Promise | None = None

    def refuses(self, state: GroupState) -> bool:
        """Whether ``state`` is of another register, or older than a state seen before (R14)."""
        if self.may_change_register(state):
            self._forget_register()
        promise, newest = self._context.promise, self._context.newest
        if promise.register_id and state.register_id != promise.register_id:
            self._context.alarm(
                "other-register", ours=promise.register_id, theirs=state.register_id
            )
            return True
        floor = promise.revision
        # What was seen binds (R14), although its promise may still be on the way to the disk.
        if newest is not None and newest.revision > floor:
            floor = newest.revision
        if self.is_older(state, floor):
            return True
        # One revision with two tags: the register was restored from an old copy and went another
        # way.
        known = promise if state.revision == promise.revision else newest
        if known is not None and state.revision == known.revision and state.tag != known.tag:
            self._context.alarm("register-branched", revision=state.revision)
            return True
        # A larger revision with a smaller epoch: also a register that went back (R18).
        if state.epoch < promise.epoch:
            self._context.alarm("register-went-back", promised=promise.epoch, epoch=state.epoch)
            return True
        return False

    def may_change_register(self, state: GroupState) -> bool:
        """Whether this node is bound to another register and may follow this one instead.

        True if it began with a coordinator that had lost its register, and has neither an epoch nor
        a byte since: then its promise there does not bind it.
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
        """Whether a state is older than revision ``floor``."""
        return state.revision < floor

    def save(self) -> None:
        """Save the newest state and revision, unless they are saved or a save is running."""
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
        # A revision that a master showed, without its state: enough to acknowledge under it (R29).
        if context.want_revision[0] > revision:
            revision, tag = context.want_revision
        # Without a session yet the last one stays: a recovery of the register asks for it (R58).
        promise = Promise(epoch, context.session or old.session, register_id, revision, tag, state)
        if promise == old:
            return
        self._saving = promise
        context.do(commands.SavePromise(promise))

    def on_saved(self, promise: Promise) -> bool:
        """Note a completed save; return whether nothing newer must be saved first."""
        self._context.promise = promise
        self._saving = None
        # A newer state may have arrived while this one was written.
        self.save()
        return self._saving is None

    def has_promised(self, state: GroupState) -> bool:
        """Whether the promise for ``state`` is durable (R13)."""
        promise = self._context.promise
        # Both: a revision may be durable without its state (`want_revision`), and so without its
        # epoch.
        return promise.revision >= state.revision and promise.epoch >= state.epoch
