"""Every command: its place in the tree, where its function lives, and examples.

Data, so that help, the reference page, the search for the nearest command and the tests read the
same thing, and so that nothing is imported before it is known which command runs.  One table for
each kind of noun; `cli.tree` joins them.

An example must work as it stands with a running local cluster; a test looks that every command has
one.  Hidden commands are called by twinlog itself.

Not here: parameters and their help (the functions' signatures and docstrings), looking one up
(`cli.tree`).
"""
