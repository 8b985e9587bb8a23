"""One running node: settings, ports, clients, HTTP, logs, metrics, and its start and stop.

From start to stop (`node.node` is that list as code):

    ports taken -> store recovered -> driver wired -> coordinator called
    -> slaves, clients and HTTP served -> role decided by events -> run.json says ready
    ... -> TERM: writes refused, pending requests answered -> ports closed -> store closed cleanly

Modules for a client's request, in ``clients``:

    server                   sockets, turns of the loop, closing clients
    connection               one client: request types, limits, answers
    append_path              many requests become one append
    reads                    slices of the log, parked readers, cold data
    off_loop, memory_budget  work in threads for clients, and its memory
    lookups, metadata, admin lookups and commands
    presence                 addresses of the other nodes

``services`` wires the parts together; ``config`` has cluster.toml and the settings of each layer;
``observe`` has status, metrics, logs and HTTP.

Imports go down only: ``replication``, ``storage``, ``twinlog``. Nothing here is global.
"""
