"""Limits of production, drawn small: what takes gigabytes or days there is met within seconds.

Not here: which are drawn (`tests.sim.swarm`).
"""

from __future__ import annotations

from collections.abc import Mapping

from replication.core import following, messages, peer_checks
from replication.core.master import session
from replication.driver import outgoing_batches
from storage.append import appender
from storage.recovery import open as recovery_open
from storage.state import producers
from tests.sim.patches import Patches

LIMITS = {
    "epochs_sent": (2, 5),
    "chain_check": (1, 2048, 16 * 1024),
    "frame_bytes": (512, 4096),
    "nacks": (1,),
    "prove_back": (1, 2048),
    "lines": (3, 8),
    "window_bytes": (1024, 8192),
    "window_frames": (1, 3),
    "waiters": (3, 20),
}
"""Values of each; those not listed below are settings, see `tests.sim.machines.node`."""

_PLACES = {
    "epochs_sent": ((messages, "EPOCHS_SENT_MAX"), (peer_checks, "EPOCHS_SENT_MAX")),
    "chain_check": ((following, "CHAIN_CHECK_BYTES"), (peer_checks, "CHAIN_CHECK_BYTES")),
    "frame_bytes": ((outgoing_batches, "FRAME_BYTES_MAX"),),
    "nacks": ((session, "NACKS_MAX"),),
    "prove_back": ((recovery_open, "PROVE_BACK"),),
    "lines": ((producers, "LINES_MAX"), (appender, "LINES_MAX")),
}


def put_in_force(limits: Mapping[str, int]) -> Patches:
    """Make the limits of production these; `Patches.undo` takes them back."""
    patches = Patches()
    for name, value in limits.items():
        for module, constant in _PLACES.get(name, ()):
            patches.set(module, constant, value)
    return patches
