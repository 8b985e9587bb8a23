"""What the register's tests share."""

from __future__ import annotations

import pytest

from tests.unit.replication.register.desk import SEED, Desk


@pytest.fixture
def desk() -> Desk:
    """All registered, n1 leads epoch 1, all in sync."""
    desk = Desk()
    for name in SEED.replicas:
        assert desk.sign_in(name).ok
    assert desk.elect("n1").ok
    assert desk.alter({"n2": 1, "n3": 1}).ok
    return desk
