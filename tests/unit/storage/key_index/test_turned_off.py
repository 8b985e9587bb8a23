"""A node without a key index says so."""

from __future__ import annotations

from storage.errors import IndexOff


def test_a_node_without_a_key_index_says_how_to_go_on() -> None:
    """It will never answer: who asks need not ask again."""
    error = IndexOff.of_node()
    assert (error.code, error.retryable) == ("index-off", False)
    assert "key_index = true" in str(error.hint)
