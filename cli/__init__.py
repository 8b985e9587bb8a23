"""The command line: ``twinlog [global options] NOUN VERB [ARGUMENT] [options]``.

One folder per noun; every command is a plain function that takes its arguments and a `Context`,
says what it found through the one printer (``render``) and returns an exit code.

==================  ==========================================================================
``app``             from the words of a call to a command, from an error to an exit code
``tree``            every command with its place, its examples and where its function lives
``options``         the global options, which may stand anywhere in a call
``parsing``         from the remaining words to a call of the function, by cyclopts
``context``         what a command is given: options, printer, cluster file, doors to the world
``connection``      one question to one process; ``config_file``: the cluster file, as addresses
``answer``          one answer for people and machines; ``render``: the only printer
``failures``        errors as text, facts, hints and exit codes; ``fields``: documents of others
``watch``           ``--watch`` of everything that lists
``help/``           help, reference page, version, completion
``cluster/``        nodes, coordinator, topics: one picture (``view``), what is wrong (``health``)
``dev/``            a cluster on this machine: ``supervisor`` owns its processes
``message/``, ``log/``, ``spark/``, ``bench/``, ``demo/``, ``config``: the other nouns
==================  ==========================================================================

Rules that hold everywhere: data goes to stdout, everything else to stderr; a question asks the
cluster with the blocking client and never imports an event loop; whatever changes something says
before what it will do, and ends as done, not done or unknown.  An import contract holds the order
of the layers.

Not here: deciding anything about the log or the cluster.  The CLI asks, shows and passes on.
"""
