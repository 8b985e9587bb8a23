r"""The twinlog error, with its sentence, that an error of Spark means to the user of a command.

Spark wraps what a source, a task or a query ended with into exceptions of its own, whose text holds
a Python traceback or a plan. `meant` finds our error in it and returns it as what it was, so that
its exit code is the same as without Spark; what a query did wrong is a `UsageError`; the rest is a
`TaskError` with the last lines of the process that died. Only names and texts are looked at.

Not here: errors of tasks that `twinlog.spark.engine.engine` runs, which come back as what they are.
"""

from __future__ import annotations

import re

from twinlog import errors as plain
from twinlog.errors import TwinlogError, UsageError
from twinlog.spark import errors as source
from twinlog.spark.engine.engine import TaskError, last_words

_OURS = re.compile(r"^.*?\btwinlog\.(?:spark\.)?errors\.(\w+): (?:twinlog: )?(.+)$", re.MULTILINE)
_CONDITION = re.compile(r"^\s*(?:\[[\w.]+\] )?(.+)$", re.MULTILINE)
_STATE = re.compile(r"\bSQLSTATE: (\w\w)\w{3}")
_PLACE = re.compile(r"\bline (\d+),? pos (\d+)")

WORDS_MAX = 400
"""Characters of Spark's text, at most: it may name every column there is."""


def meant(error: BaseException) -> TwinlogError | None:
    """Return the error of twinlog that an error of Spark stands for; None: it is not Spark's."""
    if type(error).__module__.partition(".")[0] not in ("pyspark", "py4j"):
        return None
    text = str(error)
    return _ours(text) or _of_query(text) or TaskError(last_words(text))


def _ours(text: str) -> TwinlogError | None:
    r"""Return the error of twinlog that the text of a traceback names; its code and facts are lost.

    >>> found = _ours("Traceback\nx\ntwinlog.spark.errors.NoTopic: twinlog: there is no topic u")
    >>> type(found).__name__, found.text
    ('NoTopic', 'there is no topic u')
    """
    for name, words in _OURS.findall(text):
        kind: object = getattr(source, name, None) or getattr(plain, name, None)
        if isinstance(kind, type) and issubclass(kind, TwinlogError):
            return kind(words.strip())
    return None


def _of_query(text: str) -> UsageError | None:
    r"""Return what is wrong with a query or its values: SQLSTATE 42, 22 (and 21, 0A).

    >>> print(_of_query("[A.B] There is no column `x`. SQLSTATE: 42703; line 1 pos 7;\nplan"))
    there is no column `x` (line 1, position 7)
    """
    state = _STATE.search(text)
    if state is None or state[1] not in ("42", "22", "21", "0A"):
        return None
    first = _CONDITION.search(text)
    words = first[1].partition(" SQLSTATE:")[0] if first else "it is not a query"
    words = words[:1].lower() + words[1:].rstrip(" .")[: WORDS_MAX - 1]
    place = _PLACE.search(text)
    where = f" (line {place[1]}, position {place[2]})" if place else ""
    return UsageError(words + where, code="query", hint="the query is Spark SQL")
