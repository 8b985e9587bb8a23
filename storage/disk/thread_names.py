"""The names under which the kernel shows threads: ``top -H``, ``ps -L``, debuggers."""

from __future__ import annotations

import threading


def name_thread(name: str) -> None:
    """Show the calling thread under a name, of which the kernel keeps 15 bytes.

    The first thread of a process names the process. Where the kernel cannot, nothing happens.
    """
    try:
        with open(f"/proc/self/task/{threading.get_native_id()}/comm", "w") as file:
            file.write(name)
    except OSError:
        pass
