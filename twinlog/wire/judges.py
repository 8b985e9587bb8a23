"""Functions that say whether the fields of a frame are as its shape declares them. Pure.

They are written from the declarations when the module that declares them is imported: a walk over
the declaration costs three times as much for each frame.

Not here: the declarations (``twinlog.wire.schema``), and what is wrong, in words
(``twinlog.wire.shapes``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from twinlog.wire.generated import function, outside
from twinlog.wire.shapes import INT_MAX, INT_MIN, PYTHON, Field, Kind, Shape, is_a

Judge = Callable[[Mapping[str, object]], bool]


def judge_of(shape: Shape) -> Judge:
    """Write the function that says whether fields are as ``shape`` declares them."""
    lines, needed, numbers = list[str](), list[str](), list[str]()
    names: dict[str, object] = {"STR": frozenset([str]), "MAP": frozenset([dict]), "ints": _ints}
    for at, (name, wanted) in enumerate(shape.items()):
        value = f"v{at}"
        if wanted.required:
            needed.append(f"    {value} = fields[{name!r}]")
        else:
            lines.append(f"{value} = fields.get({name!r})")
        if wanted.kind is Kind.INT and wanted.required and not wanted.nil:
            lines.append(f"if type({value}) is not int: return False")
            numbers.append(value)
            continue
        right = _right(value, wanted)
        if wanted.row:
            names[f"rows{at}"] = _rows(wanted.row)
            right += f" and rows{at}({value})"
        if wanted.nil:
            right = f"{value} is None or {right}"
        elif not wanted.required:
            right = f"{value} is None and {name!r} not in fields or {right}"
        lines.append(f"if not ({right}): return False")
    if needed:
        lines = ["try:", *needed, "except KeyError: return False", *lines]
    if numbers:
        lines.append(f"if {_beyond(numbers)}: return False")
    return function("judge", "fields", [*lines, "return True"], names)


def _right(value: str, wanted: Field) -> str:
    """The condition that one value is right, rows apart."""
    right = f"type({value}) is {PYTHON[wanted.kind].__name__}"
    if wanted.kind is Kind.INT:
        right += f" and {INT_MIN} <= {value} <= {INT_MAX}"
    if wanted.items is Kind.INT:
        right += f" and ints({value})"
    elif wanted.items is not None:
        right += f" and {wanted.items.name}.issuperset(map(type, {value}))"
    return right


def _rows(kinds: tuple[Kind, ...]) -> Callable[[list[object]], bool]:
    """Write the function that says whether each row begins with columns of ``kinds``."""
    columns, count = [f"c{at}" for at in range(len(kinds))], len(kinds)
    wrong = [
        f"type({column}) is not {PYTHON[kind].__name__}" for column, kind in zip(columns, kinds)
    ]
    numbers = [column for column, kind in zip(columns, kinds) if kind is Kind.INT]
    lines = [
        "for row in values:",
        f"    if type(row) is not list or len(row) < {count}: return False",
        f"    {', '.join(columns)} = row if len(row) == {count} else row[:{count}]",
        f"    if {' or '.join(wrong)}: return False",
    ]
    if numbers:
        lines.append(f"    if {_beyond(numbers)}: return False")
    return function("rows", "values", [*lines, "return True"], {})


def _beyond(numbers: list[str]) -> str:
    """The condition that one of the whole ``numbers`` needs more than 64 bits.

    One comparison where all are 0 or more, which is the rule; else each is looked at.
    """
    each = " and ".join(f"{INT_MIN} <= {number} <= {INT_MAX}" for number in numbers)
    return f"{outside(numbers, INT_MAX)} and not ({each})"


def _ints(values: list[object]) -> bool:
    return all(is_a(value, Kind.INT) for value in values)
