"""The command line: ``twinlog [global options] NOUN VERB [ARGUMENT] [options]``.

One file per noun; every command is a plain function that takes its arguments and a `Context`, says
what it found through the one printer (``render``) and returns an exit code (``failures.Exit``).

==================  ==========================================================================
``app``             from the words of a call to a command, from an error to an exit code
``tree``            every command with its place, its examples and where its function lives
``options``         the global options, which may stand anywhere in a call
``context``         what a command is given: options, printer, connections, questions
``render``          the only printer: table, wide, json, jsonl, tsv, name
``failures``        errors as text, facts, hints and exit codes
``help``            help of one command, and the reference page made of all of them
``supervisor``      the one process that owns coordinator and nodes of ``dev`` and ``demo``
==================  ==========================================================================

Rules that hold everywhere: data goes to stdout, everything else to stderr; a question asks the
cluster with the blocking client and never imports an event loop; whatever changes something says
before what it will do, and ends as done, not done or unknown.

Not here: deciding anything about the log or the cluster.  The CLI asks, shows and passes on.
"""
