"""Runs the fuzzer: each target in a process of its own, for its share of the time.

    python -m tests.fuzz [TARGET …] [--seconds 60] [--jobs 2] [--corpus DIR]

With ``--corpus`` what was found interesting is kept there and taken up again. A finding ends the
run of its target; its input is printed, and `python -m tests.fuzz TARGET --input FILE` shows it
again. Exit code 1 after a finding, 0 without, 78 where atheris is not installed.

Not here: the targets (`tests.fuzz.targets`).
"""

from __future__ import annotations

import argparse
import importlib
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path

INPUT_MAX = 4096
"""Bytes of an input; what is read is small, or made of small parts."""
GRACE_SECONDS = 300
"""How much longer than its share a target may take, loading included."""


def fuzz(name: str, arguments: list[str]) -> None:
    """Be the process that fuzzes one target; libFuzzer ends it."""
    atheris = importlib.import_module("atheris")
    with atheris.instrument_imports(include=["twinlog", "storage"]):
        targets = importlib.import_module("tests.fuzz.targets")
    target = next(one for one in targets.TARGETS if one.name == name)
    atheris.Setup([sys.argv[0], *arguments], target.read)
    atheris.Fuzz()


def names() -> list[str]:
    """The targets' names."""
    return [one.name for one in importlib.import_module("tests.fuzz.targets").TARGETS]


def run(name: str, seconds: float, corpus: Path | None) -> tuple[str, bool, str]:
    """Fuzz one target in a child; returns its name, whether it held, and what libFuzzer said."""
    with tempfile.TemporaryDirectory() as folder:
        seeds, found = Path(folder) / "seeds", Path(folder) / "found"
        seeds.mkdir()
        found.mkdir()
        targets = importlib.import_module("tests.fuzz.targets").TARGETS
        target = next(one for one in targets if one.name == name)
        for number, seed in enumerate(target.seeds()):
            (seeds / str(number)).write_bytes(seed)
        kept = seeds if corpus is None else corpus / name
        kept.mkdir(parents=True, exist_ok=True)
        command = [
            sys.executable, "-m", "tests.fuzz", "--child", name, str(kept), str(seeds),
            f"-max_total_time={max(1, round(seconds))}", f"-max_len={INPUT_MAX}", "-timeout=30",
            "-rss_limit_mb=2048", f"-artifact_prefix={found}/", "-print_final_stats=1",
        ]  # fmt: skip
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=seconds + GRACE_SECONDS,
                check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:  # what the other targets said must not be lost with it
            return name, False, f"{name} did not end {GRACE_SECONDS} s after its time"
        text = done.stderr
        for path in sorted(found.iterdir()):
            text += f"\ninput ({path.name}): {path.read_bytes().hex()}"
        return name, done.returncode == 0 and not any(found.iterdir()), text


def main() -> int:
    """Fuzz what was asked for; returns the exit code."""
    if sys.argv[1:2] == ["--child"]:
        fuzz(sys.argv[2], sys.argv[3:])
        return 0
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("target", nargs="*", help="what to fuzz; everything when none is named")
    parser.add_argument("--seconds", type=float, default=60.0, help="for all targets together")
    parser.add_argument("--jobs", type=int, default=2, help="targets at once")
    parser.add_argument("--corpus", type=Path, help="keeps inputs between runs")
    parser.add_argument("--input", type=Path, help="run one target on this file instead")
    asked = parser.parse_args()
    known = names()
    if odd := set(asked.target) - set(known):
        parser.error(f"no target {', '.join(sorted(odd))}; there are {', '.join(known)}")
    wanted = asked.target or known
    if asked.input is not None:
        targets = importlib.import_module("tests.fuzz.targets").TARGETS
        next(one for one in targets if one.name == wanted[0]).read(asked.input.read_bytes())
        return 0
    if find_spec("atheris") is None:
        print("atheris is not installed: uv sync --group fuzz", file=sys.stderr)
        return 78
    share = asked.seconds * asked.jobs / len(wanted)
    with ThreadPoolExecutor(asked.jobs) as pool:
        results = list(pool.map(lambda name: run(name, share, asked.corpus), wanted))
    for name, held, text in results:
        runs = next(
            (line.split()[-1] for line in text.splitlines() if "number_of_executed_units" in line),
            "?",
        )
        print(f"{name:14} {'held' if held else 'BROKEN':8} {runs:>10} inputs in {share:.0f} s")
        if not held:
            print(text[-4000:])
    return 0 if all(held for _, held, _ in results) else 1


if __name__ == "__main__":
    sys.exit(main())
