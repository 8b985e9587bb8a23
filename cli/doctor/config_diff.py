"""``twinlog config diff``: what the cluster file changes for nodes that run, and when it counts.

A node keeps beside its run file what it was started with, so nodes on this machine are compared
with that; for others, or for a change that is only planned, two files are compared.

Not here: taking a changed file (``node.reload``), the keys (``node.config.sections``).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from cli.answer import Answer, Table, dump
from cli.config_file import read_config
from cli.context import Context
from cli.doctor.machine import runs
from cli.failures import Exit
from cli.fields import Fields
from cli.parsing import PRIVATE
from twinlog.run_file import read_json

if TYPE_CHECKING:
    from node.config.config import ClusterConfig


def diff(
    *,
    with_: Annotated[Path | None, Parameter(name="--with")] = None,
    context: Annotated[Context, PRIVATE],
) -> int:
    """Compare the cluster file with what nodes on this machine were started with; exit 0 or 1.

    TAKES-EFFECT says what makes a setting count: ``reload`` (SIGHUP), ``restart`` of the node, or
    ``cluster set`` for what a group takes from the file at its first start only. Exit 1: something
    differs. Nodes that do not run here are compared with --with.

    Args:
        with_: Compare with this file instead, for all nodes.
    """
    config = context.config()
    before = None if with_ is None else read_config(with_, context.environment)
    items: list[Fields] = []
    unknown: list[str] = []
    for node in config.nodes:
        old = before.values if before is not None else _started(node.data)
        if old is None:
            unknown.append(node.name)
        else:
            items += _changes(config, node.name, old)
    head = "nothing differs" if not items else f"{len(items)} settings differ"
    if unknown and len(unknown) == len(config.nodes):
        head = "no node of the file runs on this machine"
    context.printer.answer(
        Answer(
            kind="ConfigDiff",
            fields={"file": str(config.path), "changes": items, "unknown": unknown},
            head=head,
            tables=[Table.of("NODE SETTING STARTED-WITH=before FILE=after TAKES-EFFECT", items)]
            if items
            else (),
            tail=f"not compared, they do not run here: {', '.join(unknown)}" if unknown else "",
            items=items,
            names=[f"{item['node']}.{item['setting']}" for item in items],
        )
    )
    return Exit.NO if items else Exit.OK


def _started(folder: Path) -> Mapping[str, object] | None:
    """What the node that runs in a folder was started with; None: none runs there."""
    from node.reload import STARTED_FILE

    return read_json(folder / STARTED_FILE) if runs(folder) else None


def _changes(config: ClusterConfig, name: str, old: Mapping[str, object]) -> list[Fields]:
    from node.reload import differing, takes_effect

    others = [node.name for node in config.nodes if node.name != name]
    return [
        {
            "node": name,
            "setting": key,
            "before": _told(old.get(key)),
            "after": _told(config.values.get(key)),
            "takes_effect": takes_effect(key, name),
        }
        for key in differing(old, config.values, others)
    ]


def _told(value: object) -> str:
    return "none" if value is None else value if isinstance(value, str) else dump(value)
