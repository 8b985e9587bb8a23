"""What users learn of one client holds for the other: the same methods with the same arguments."""

from __future__ import annotations

import inspect

import pytest

from twinlog import AsyncClient, Client

ONE_ONLY = {"close": Client, "follow": AsyncClient}
"""``async with`` closes an `AsyncClient`; a blocking reader follows with ``read(follow=True)``."""


def methods(client: type) -> set[str]:
    """The names of a client's public methods, those that it inherits included."""
    return {
        name for name in dir(client) if not name.startswith("_") and callable(getattr(client, name))
    }


def arguments(client: type, method: str) -> list[tuple[str, str, object, str]]:
    """Name, kind, default and type of each argument of a method."""
    found = inspect.signature(getattr(client, method)).parameters.values()
    return [(one.name, one.kind.name, one.default, str(one.annotation)) for one in found]


ITERATORS = {"GroupSteps": "Generator[Step, None]"}
"""Blocking iterators with a name of their own, and what their awaiting twins are but for it."""


def test_both_clients_have_the_same_methods() -> None:
    """But for what only one of the two needs."""
    differ = methods(Client) ^ methods(AsyncClient)
    assert differ == set(ONE_ONLY)
    assert all(name in methods(client) for name, client in ONE_ONLY.items())


@pytest.mark.parametrize("method", ["__init__", *sorted(methods(Client) & methods(AsyncClient))])
def test_both_clients_take_the_same_arguments(method: str) -> None:
    """Their names, order, defaults and types; what they mean is said once, at `Client`."""
    assert arguments(AsyncClient, method) == arguments(Client, method)


@pytest.mark.parametrize("method", sorted(methods(Client) & methods(AsyncClient)))
def test_both_clients_return_the_same(method: str) -> None:
    """But for the awaiting forms of producer and reader."""
    blocking, awaiting = (
        str(inspect.signature(getattr(client, method)).return_annotation)
        for client in (Client, AsyncClient)
    )
    assert awaiting.replace("Async", "") == ITERATORS.get(blocking, blocking)
