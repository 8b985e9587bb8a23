"""``twinlog access``, ``user`` and ``rule``: who may do what."""
