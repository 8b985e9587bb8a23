"""Coverage-guided fuzzing of everything that reads bytes from outside.

    python -m tests.fuzz --seconds 60             every target, a share of the time each
    python -m tests.fuzz record --seconds 3600    one of them, for an hour

Needs the dependency group ``fuzz`` (atheris; libFuzzer comes with it).
"""
