# Commands for developers. `make verify` only checks, `make fix` writes.

RUN = uv run
SEED ?= 1
FROM ?= HEAD
VERSION ?=
DRY ?=
OUT ?= dist

.PHONY: verify fix test sim bench dev processes interop types docs fuzz cover upgrade release site

verify: types           ## format, lint, types, imports, style, quick tests; writes nothing
	$(RUN) ruff format --check .
	$(RUN) ruff check .
	$(RUN) lint-imports
	$(RUN) pytest -q -m "not processes and not sim and not interop and not spark"

types:                  ## both type checkers, strict
	$(RUN) mypy twinlog storage replication node cli
	$(RUN) pyright twinlog storage replication node cli

fix:                    ## format, fix what ruff can fix, regenerate pages
	$(RUN) ruff format .
	$(RUN) ruff check --fix .
	$(RUN) python -m tests.tidy.generate

test:                   ## everything that this machine can run
	$(RUN) pytest -q

sim:                    ## one seed of the simulator, with its trace: make sim SEED=17
	$(RUN) python -m tests.sim --seed $(SEED) --trace

processes:              ## real node processes, faults and kills
	$(RUN) pytest -q -m processes

interop:                ## the real RocketMQ opens twinlog's stores (Java 17, Maven)
	$(RUN) pytest -q -m interop

fuzz:                   ## a minute of coverage-guided fuzzing (uv sync --group fuzz)
	$(RUN) python -m tests.fuzz --seconds 60

upgrade:                ## roll a cluster from the wheel of a commit to this tree, and back: make upgrade FROM=COMMIT
	$(RUN) python -m tests.readme.upgrade $(FROM)

release:                ## wheel, sdist and changelog, checked, never uploaded: make release VERSION=X.Y.Z [DRY=1] [OUT=DIR]
	$(RUN) python -m tests.release.build "$(VERSION)" $(if $(DRY),--dry-run) --out "$(OUT)"

cover:                  ## every line and branch of the pure modules; minutes
	$(RUN) python -m tests.tidy.cover

bench:                  ## the key cells against Redis Streams, in one run
	$(RUN) python benchmarks/key_cells.py

dev:                    ## three nodes on this machine
	$(RUN) twinlog dev up

docs:                   ## regenerate the rendered pages
	$(RUN) python -m tests.tidy.generate

site:                   ## the documentation as a site, strictly, into build/site
	NO_MKDOCS_2_WARNING=1 $(RUN) --group docs mkdocs build --strict
