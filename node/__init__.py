"""One running node: settings, ports, clients, HTTP, logs, figures, and the order of its life.

From start to stop (`node.node` is that list as code):

    ports taken -> store recovered -> driver tied to its world -> coordinator asked
    -> slaves, clients and HTTP served -> role decided by what arrives -> run.json says ready
    ... -> TERM: writes refused, what is owed answered -> ports closed -> store closed cleanly

Who does what for a client's request:

    connection         one client: types 32-42, limits, answers
    client_server      sockets, turns of the loop, who is closed
    append_path        many requests become one append
    reads              slices of the log, parked readers, cold data
    cold_work, budget  what threads do for clients, and the memory of it
    answers, admin     questions and orders
    presence           where the other nodes are

    running            ties the parts together and keeps what several of them look at
    config*, parts     cluster.toml, and what each layer takes from it
    status, metrics, figures, http_server, logs, counts   what a node says about itself

Imports go down only: ``replication``, ``storage``, ``twinlog``. Nothing here is global.
"""
