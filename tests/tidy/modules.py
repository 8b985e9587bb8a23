"""Every module of the source: pure, a seam, or shell; and how tests find them."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("twinlog", "storage", "replication", "node", "cli")

PURE = {
    "node/access": "gate grants visitor",
    "node/clients": "counts freshness limits presence",
    "node/config": "section sections storage_sections toml_lines values",
    "node/leases": "clock due filters limits ordering scratch settles times",
    "node/observe": "status",
    "node/topics": "*",
    "node/transactions": "checks",
    "node/turns": "members",
    "replication": "answer_times pacing settings",
    "replication/coordinator": "history",
    "replication/core": "*",
    "replication/core/master": "*",
    "replication/driver": "outcomes",
    "replication/register": "*",
    "storage": "damage errors flush_policy jobs settings token",
    "storage/disk": "packing",
    "storage/log": "epoch_history memory_pool page_advice",
    "storage/messaging": "*",
    "storage/queues": "light_queues names",
    "storage/read": "filters selection",
    "storage/recovery": "group_export log_end summary",
    "storage/retention": "policy",
    "storage/state": (
        "access ages control controls gathered group_controls layers producers sections sequences "
        "topic_controls topics"
    ),
    "twinlog": "errors levels ranges units",
    "twinlog/client": "arguments calls search",
    "twinlog/consumer": "core fetching start_offsets",
    "twinlog/groups": (
        "core delivery dialogue leases outcomes ready renewal requests seat settings speed "
        "telling together"
    ),
    "twinlog/filters": "*",
    "twinlog/format": "*",
    "twinlog/format/waiting": "*",
    "twinlog/kernels": "*",
    "twinlog/producer": (
        "call_backs core fast_path lane later master_link new_message outcomes section "
        "settings single_sends transaction_name"
    ),
    "twinlog/producer/one_way": "accounts",
    "twinlog/session": "link reading routing session tls_files",
    "twinlog/spark": "arrow errors",
    "twinlog/spark/archive": "manifest",
    "twinlog/spark/engine": "report",
    "twinlog/spark/jobs/reports": "groups queries reference",
    "twinlog/spark/plan": "*",
    "twinlog/spark/sink": "settings",
    "twinlog/wire": "*",
}
"""Modules that decide and never do: no clock, socket, file, task or random number, neither of their
own nor through another module of the tree. `tests.tidy.cover` demands that tests reach all of
them."""

SEAM = {
    "node/access": "orders",
    "node/clients": "append_path connection lookups metadata raw_log reads refusals searches",
    "node/delivery": "*",
    "node/groups": (
        "backlog dead_letters documents figures joining orders pops positions requests service "
        "together"
    ),
    "node/leases": "leasing",
    "node/transactions": "asking service",
    "node/turns": "context parked",
    "replication/driver": (
        "appends background_jobs driver incoming_batches odd_frames outgoing_batches outside "
        "replies retention scrubbing"
    ),
    "storage/append": "*",
    "storage/key_index": "*",
    "storage/log": (
        "batch_index commit_log log_folders reserve sealed_index segment segments stretches"
    ),
    "storage/marks": "archive_mark clean_start identity promise quarantine run two_slots",
    "storage/queues": "batch_queue consume_queue entry_check queues",
    "storage/read": "lookups raw reader result scattered stretches",
    "storage/recovery": (
        "close config_export derived open opened reseed snapshot timer_export truncate"
    ),
    "storage/retention": "removal",
    "storage/state": "dispatcher",
    "twinlog/store": "damage epochs find log",
    "twinlog/store/verify": "*",
}
"""Modules that reach the world only through an object they are given: a ``Disk``, a ``Store``, an
``Outside``. The simulator runs them as they are; they import nothing of the world either."""

SHELL = {
    "node": "*",
    "node/clients": "admin memory_budget off_loop server",
    "node/config": "cluster config layer_settings pages sources",
    "node/observe": "exposition http_server live logs metrics systemd task_tree",
    "replication": "replica_service",
    "replication/coordinator": (
        "blocking_client client etcd_gateway etcd_store peer process seat service standby store"
    ),
    "replication/net": "*",
    "storage": "background clean_stop cuts progress reads scrub store",
    "storage/disk": "copies descriptors disk drill_faults mapping thread_names",
    "storage/log": "block_cache",
    "storage/marks": "checkpoint",
    "storage/tools": "*",
    "twinlog": "__main__ run_file",
    "twinlog/client": "aio aio_one_way blocking checks one_way topics transactions",
    "twinlog/consumer": "aio blocking",
    "twinlog/groups": "aio blocking",
    "twinlog/producer": "aio blocking",
    "twinlog/producer/one_way": "aio blocking",
    "twinlog/session": "aio_caller aio_connection caller connection login tls tls_socket",
    "twinlog/spark": "sessions",
    "twinlog/spark/archive": (
        "archive_dir integrity job lease notify_nodes queue_offsets restore rows scan sources view "
        "writing"
    ),
    "twinlog/spark/directory": "*",
    "twinlog/spark/engine": "atomic_output engine session spark_errors worker_memory",
    "twinlog/spark/jobs/compact": "*",
    "twinlog/spark/jobs/rebuild": "*",
    "twinlog/spark/jobs/replay": "*",
    "twinlog/spark/jobs/reports": "archived group_topic tables",
    "twinlog/spark/jobs/verify": "*",
    "twinlog/spark/nodes": "*",
    "twinlog/spark/sink": "writer",
    "twinlog/spark/source": "*",
    "twinlog/store": (
        "batch_queues compacted_queues files key_index marks queue_entries queues "
        "reader rocketmq_config delays timers topics"
    ),
}
"""The rest: sockets, files, tasks, clocks, and what draws random numbers."""


def sources(*folders: str) -> list[Path]:
    """Every Python file of the given top folders."""
    found = [path for name in folders or FOLDERS for path in sorted((ROOT / name).rglob("*.py"))]
    return [path for path in found if "__pycache__" not in path.parts]


def label(path: Path) -> str:
    """The path as a test name."""
    return path.relative_to(ROOT).as_posix()


def files_of(*tables: dict[str, str]) -> list[Path]:
    """The files that tables of folders list: the named modules, or with ``*`` the whole folder."""
    found: list[Path] = []
    for table in tables:
        for folder, names in sorted(table.items()):
            place = ROOT / folder
            listed = [place / f"{name}.py" for name in sorted(names.split())]
            whole = sorted(path for path in place.glob("*.py") if path.name != "__init__.py")
            found += whole if names == "*" else listed
    return found
