"""Functions that are written by a program: straight code for one declared message.

A declaration says what each field of a message may be. Walking it for every message costs more than
the work itself, so the code for each message is written once, when its module is imported, and
compiled. Only declarations of twinlog itself become text here, never anything that a peer sent.

Not here: what the declarations are (``twinlog.wire.schema``, ``replication.core.messages``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any


def function(
    name: str, arguments: str, lines: Iterable[str], names: Mapping[str, object]
) -> Callable[..., Any]:
    """Return the function whose body is ``lines``; it may use ``names`` and the builtins.

    >>> function("double", "x", ["return factor * x"], {"factor": 2})(21)
    42
    """
    source = "\n".join([f"def {name}({arguments}):", *(f"    {line}" for line in lines)])
    space: dict[str, Any] = dict(names)
    exec(compile(source, f"<generated {name}>", "exec"), space)
    made: Callable[..., Any] = space[name]
    return made


def outside(numbers: Iterable[str], most: int) -> str:
    """Return the condition that one of the whole ``numbers`` is below 0 or above ``most``.

    One comparison for all of them: ``most`` is 2**k - 1, so a number above it has a bit that
    ``most`` lacks, and one below 0 makes the whole negative.

    >>> outside(["a", "b"], 255)
    'not 0 <= (a | b) <= 255'
    """
    assert most & (most + 1) == 0, f"{most} is not a power of two less one"
    return f"not 0 <= ({' | '.join(numbers)}) <= {most}"
