"""Kinds of values in ``cluster.toml``: sizes, durations, shares, hours, names, ports.

Each reads the text with its unit and refuses others with a hint. The word in each annotation names
the kind in ``docs/settings.md`` (`node.config.pages`).
"""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Field
from pydantic_core import PydanticCustomError

from twinlog.units import UnitError, parse_duration, parse_size, parse_whole


def _size(value: object) -> object:
    if isinstance(value, str):
        try:
            return parse_size(value)
        except UnitError as error:
            text = f'"{value}", which is not a size'
            raise PydanticCustomError("unit", "{what}", {"what": text, "hint": _hint(error)}) from (
                error
            )
    return value


def _seconds(value: object) -> object:
    if isinstance(value, (str, int, float)):
        try:
            return parse_duration(str(value))
        except UnitError as error:
            text = f'"{value}", which is not a duration'
            raise PydanticCustomError("unit", "{what}", {"what": text, "hint": _hint(error)}) from (
                error
            )
    return value


def _hint(error: UnitError) -> str:
    return error.hint


def _size_or_none(value: object) -> object:
    return None if value == "none" else _size(value)


def _seconds_or_none(value: object) -> object:
    return None if value == "none" else _seconds(value)


def _share(value: object) -> object:
    """Read ``75 %``; other forms are refused, because 0.75 and 75 would both look right."""
    text, _, rest = str(value).partition("%")
    number = parse_whole(text.strip())
    if isinstance(value, str) and "%" in value and not rest and number is not None:
        return number / 100
    text = f'"{value}", which is not a share of the disk'
    hint = 'write it like "75 %"'
    raise PydanticCustomError("unit", "{what}", {"what": text, "hint": hint})


def _hours(value: object) -> object:
    """Read ``any time`` or hours such as ``04:00`` or ``04:00;16:00``."""
    if value == "any time":
        return value
    parts = [part.strip() for part in str(value).split(";")]
    hours = [part[:2] for part in parts if len(part) == 5 and part[2:] == ":00"]
    if len(hours) == len(parts) and all(parse_whole(hour) in range(24) for hour in hours):
        return "; ".join(parts)
    text = f'"{value}", which is not an hour of day'
    hint = 'write it like "04:00", "04:00; 16:00" or "any time"'
    raise PydanticCustomError("unit", "{what}", {"what": text, "hint": hint})


Size = Annotated[int, BeforeValidator(_size), "size"]
OptionalSize = Annotated[int | None, BeforeValidator(_size), "size"]
"""None: chosen by the node."""
SizeOrNone = Annotated[int | None, BeforeValidator(_size_or_none), "size or none"]
SecondsOrNone = Annotated[float | None, BeforeValidator(_seconds_or_none), "duration or none"]
Share = Annotated[float, BeforeValidator(_share), "share of the disk"]
Hours = Annotated[str, BeforeValidator(_hours), "full hours, or any time"]
Seconds = Annotated[float, BeforeValidator(_seconds), "duration"]
Port = Annotated[int, Field(ge=0, le=65535), "port, 0: the system chooses"]
NAME = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$"
"""Pattern of the names of clusters, groups and nodes."""
Name = Annotated[str, Field(pattern=NAME)]
