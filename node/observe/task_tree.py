"""The tree of running tasks as text, for SIGUSR1: where every task of the node waits.

Reads trio's own structures from inside the loop; changes nothing.
"""

from __future__ import annotations

import trio


def task_tree() -> list[str]:
    """Return one line per task, indented by depth, with the place where it waits."""
    root = trio.lowlevel.current_root_task()
    lines: list[str] = []
    if root is not None:
        _task(root, 0, lines)
    return lines


def _task(task: trio.lowlevel.Task, depth: int, lines: list[str]) -> None:
    lines.append(f"{'  ' * depth}{task.name} at {_place(task)}")
    for nursery in task.child_nurseries:
        for child in sorted(nursery.child_tasks, key=lambda each: each.name):
            _task(child, depth + 1, lines)


def _place(task: trio.lowlevel.Task) -> str:
    """Return the innermost twinlog frame that a task waits in."""
    found = "its start"
    for frame, line in task.iter_await_frames():
        name = frame.f_code.co_filename
        if f"{'/'}trio{'/'}" in name:
            break
        found = f"{name.rsplit('/', 2)[-2]}/{name.rsplit('/', 1)[-1]}:{line}"
    return found
