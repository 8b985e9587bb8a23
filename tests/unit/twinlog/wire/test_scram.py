"""SCRAM-SHA-256, held against the example of RFC 7677."""

from __future__ import annotations

import base64
from dataclasses import replace

import pytest

from twinlog.errors import UsageError
from twinlog.wire import scram

OWN = "rOprNGfwEbeRWgbNEkqO"
WHOLE = OWN + "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
SALT = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
SPOKEN = scram.said("user", OWN, WHOLE, SALT, 4096)
SECRET = scram.salted("pencil", SALT, 4096)
KEPT = scram.verifier("pencil", SALT, 4096)


def test_the_example_of_the_rfc() -> None:
    """Proof and signature are those that any other implementation makes."""
    shown = scram.proof(SECRET, SPOKEN)
    assert base64.b64encode(shown) == b"dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    signature = scram.signature(KEPT, SPOKEN)
    assert base64.b64encode(signature) == b"6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
    assert scram.proven(KEPT, SPOKEN, shown)
    assert scram.signed(SECRET, SPOKEN, signature)


def test_what_is_wrong_in_any_part_proves_nothing() -> None:
    """Another password, another dialogue, another verifier, a proof of another length."""
    shown = scram.proof(SECRET, SPOKEN)
    other = scram.said("user", OWN, WHOLE + "x", SALT, 4096)
    assert not scram.proven(KEPT, other, shown), "it would be of use a second time"
    assert not scram.proven(KEPT, SPOKEN, scram.proof(scram.salted("Pencil", SALT, 4096), SPOKEN))
    assert not scram.proven(replace(KEPT, stored_key=bytes(32)), SPOKEN, shown)
    assert not scram.proven(KEPT, SPOKEN, shown[:-1])
    assert not scram.signed(SECRET, other, scram.signature(KEPT, SPOKEN))
    assert scram.matches(KEPT, "pencil")
    assert not scram.matches(KEPT, "pencil ")
    assert not scram.matches(KEPT, "")
    assert "stored_key" not in repr(KEPT)


@pytest.mark.parametrize("password", ["", "a\nb", "x" * (scram.PASSWORD_MAX + 1)])
def test_what_is_no_password(password: str) -> None:
    """It is refused where it is typed, not at the next login."""
    with pytest.raises(UsageError):
        scram.verifier(password, SALT, 4096)


def test_a_password_is_the_same_however_it_is_typed() -> None:
    """One keyboard writes ü as one character, another one as two."""
    assert scram.matches(scram.verifier("gr\u00fcn", SALT, 4096), "gru\u0308n")
