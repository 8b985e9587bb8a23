"""``twinlog config``: write a cluster file, check it, show every setting with its origin.

Not here: the keys and their limits (``node.config.sections``).
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from cli.answer import Answer, Table
from cli.config_file import read_config
from cli.context import Context
from cli.failures import Exit, Failure
from cli.fields import Fields
from cli.parsing import PRIVATE
from twinlog.units import parse_whole

Overrides = Annotated[tuple[str, ...], Parameter(name="--set", consume_multiple=False)]
"""``--set storage.flush=sync``, repeatable: wins over environment and file."""


def overrides(words: Iterable[str]) -> dict[str, object]:
    """Read ``section.key=value`` words.

    Raises:
        Failure: A word has no ``=`` or no section (exit 64).

    >>> overrides(["storage.flush=sync"])
    {'storage.flush': 'sync'}
    """
    found: dict[str, object] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or "." not in name:
            raise Failure(
                Exit.USAGE,
                f'--set is "{word}"; it is a setting and its value',
                hints=("write it like --set storage.flush=sync",),
            )
        number = parse_whole(value)
        found[name] = value if number is None else number
    return found


def init(
    file: Path | None = None,
    *,
    local: bool = False,
    nodes: int = 3,
    name: str = "local",
    data: str = "data",
    base_port: int = 7400,
    context: Annotated[Context, PRIVATE],
) -> int:
    """Write a commented cluster file that runs as it stands on this machine.

    An existing file is never touched.

    Args:
        file: Where to; default ``cluster.toml`` here.
        local: Every node on this machine; the only kind so far, so it may be left out.
        nodes: How many nodes, 1 to 9.
        name: Name of the cluster.
        data: Folder of all data, relative to the file.
        base_port: The coordinator's port; node n has this + 10 n and the two behind it. 0: the
            system chooses all.
    """
    from node.config.pages import Local, write_local

    if not 1 <= nodes <= 9:
        raise Failure(Exit.USAGE, f"--nodes is {nodes}; it can be 1 to 9")
    path = file or context.options.config or Path("cluster.toml")
    try:
        write_local(path, Local(nodes=nodes, cluster=name, data=data, base_port=base_port))
    except FileExistsError:
        raise Failure(
            Exit.NO,
            f"{path} exists already; it was not touched",
            hints=("look at it: twinlog config show", "or write another: twinlog config init FILE"),
        ) from None
    everything = f"twinlog -c {path} dev up --background"
    context.printer.answer(
        Answer(
            kind="ConfigInit",
            fields={"file": str(path), "nodes": [f"n{at}" for at in range(1, nodes + 1)]},
            head=f"wrote {path}: {nodes} nodes on this machine",
            names=[str(path)],
            tail=f"all of it: {everything}\neach process in a terminal of its own: "
            f"{_by_hand(path, nodes)}",
            next=everything,
        )
    )
    return Exit.OK


def _by_hand(path: Path, nodes: int) -> str:
    """The commands that start each process of the file."""
    words = ["coordinator start", *(f"node start n{at}" for at in range(1, nodes + 1))]
    named = "twinlog" if path == Path("cluster.toml") else f"twinlog -c {path}"
    return ", ".join(f"{named} {word}" for word in words)


def check(
    file: Path | None = None,
    *,
    set_: Overrides = (),
    context: Annotated[Context, PRIVATE],
) -> int:
    """Find every mistake of the cluster file at once, each with its line; exit 0 or 78.

    Args:
        file: The file; default the one that commands would use.
        set_: A setting as ``section.key=value``, as if it were given to ``node start``.
    """
    if file is not None:
        config = read_config(file, context.environment, overrides(set_))
    else:
        config = context.config(overrides(set_))
    names = [node.name for node in config.nodes]
    context.printer.answer(
        Answer(
            kind="ConfigCheck",
            fields={
                "file": str(config.path),
                "cluster": config.name,
                "nodes": names,
                "mistakes": [],
            },
            head=f"{config.path}: cluster {config.name}, nodes {', '.join(names)}, no mistakes",
            names=[str(config.path)],
        )
    )
    return Exit.OK


def show(
    *,
    changed: bool = False,
    set_: Overrides = (),
    context: Annotated[Context, PRIVATE],
) -> int:
    """Show every setting with its value and where it comes from.

    Args:
        changed: Only those that are not the default.
        set_: A setting as ``section.key=value``, as if it were given to ``node start``.
    """
    from node.config.pages import shown

    config = context.config(overrides(set_))
    items: list[Fields] = []
    rows: list[Fields] = []
    for name, value in config.values.items():
        origin = config.origins.get(name)
        told = str(origin) if origin is not None else "default"
        if changed and told == "default":
            continue
        text = "none" if value is None else shown(value, _kind(name))
        items.append({"setting": name, "value": value, "origin": told})
        rows.append({**items[-1], "value": text})
    context.printer.answer(
        Answer(
            kind="ConfigShow",
            fields={"file": str(config.path), "settings": items},
            tables=[Table.of("SETTING VALUE ORIGIN", rows)],
            items=items,
            names=[str(item["setting"]) for item in items],
        )
    )
    return Exit.OK


def _kind(name: str) -> str:
    """Whether a setting is a size or a duration, by its section's model."""
    from node.config.sections import SECTIONS

    *_, section, key = name.split(".")
    model = SECTIONS.get(section)
    info = model.model_fields.get(key) if model is not None else None
    words = [word for word in info.metadata if isinstance(word, str)] if info is not None else []
    return words[0] if words else ""
