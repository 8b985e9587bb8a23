"""What every section of ``cluster.toml`` is: a frozen model that knows the keys of later versions.

Not here: the sections (``node.config.sections``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """One table of the file. Frozen; an unknown key is refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=False)
    later: ClassVar[Mapping[str, str]] = {}
    """Keys, or ``key=value``, of a later version: what they will do."""
