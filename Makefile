# `make run` and `make test` do all set-up; `make help` lists the rest.

PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))' 2>/dev/null && echo $$p && break; done)
BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
# A cached kernel does not notice an edit in another file that it calls, so each state of the sources has a cache of its own.
TEST_CACHES := $(CURDIR)/.venv/test-kernels
TEST_CACHE = $(TEST_CACHES)/$(shell find src -name '*.py' | LC_ALL=C sort | xargs cat | cksum | tr ' ' -)
# With COVERAGE=1 the tests are measured.
PYTEST = NUMBA_CACHE_DIR=$(TEST_CACHE) $(BIN)/$(if $(COVERAGE),coverage run --parallel-mode,python) -m pytest

.PHONY: help run demo setup test test-spark test-answers test-published test-others test-nojit test-kafka test-s3 test-cluster test-peers lint check format soak \
	bench bench-list bench-report bench-gate lock clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-20s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

run: .venv/run.done  ## set up if needed, and run the whole engine on the bundled sample
	@$(BIN)/nearcast demo

demo: run

setup: .venv/dev.done  ## create .venv with everything for development

test: .venv/dev.done  ## set up if needed, and run the tests
	@find $(TEST_CACHES) -mindepth 1 -maxdepth 1 ! -path '$(TEST_CACHE)' -exec rm -rf {} + 2>/dev/null || true
	@echo "Running the tests, two groups at a time; a group is shown when it is done."
	@$(MAKE) --no-print-directory --jobs=2 --output-sync=target test-spark test-answers test-others $(MORE)

check: lint  ## what must pass before a change lands: style, types, imports, the tests, also with the JIT off, and their coverage
	@rm -f .coverage .coverage.*
	@NEARCAST_CHECK=1 $(MAKE) --no-print-directory test COVERAGE=1 MORE="test-published test-nojit"
	@$(BIN)/coverage combine --quiet
	@$(BIN)/coverage report

# Generated scenarios against the oracle. They run twice, and their coverage is measured with the JIT off, where it includes
# the kernels: measuring takes as long as the tests themselves.
ANSWERS := tests/contract tests/partition

test-answers: .venv/dev.done  ## the tests against the oracle
	NUMBA_CACHE_DIR=$(TEST_CACHE) $(BIN)/python -m pytest $(ANSWERS)

test-published: .venv/dev.done  ## the papers' own indexes, which benchmarks compare with, against the oracle
	NUMBA_CACHE_DIR=$(TEST_CACHE) $(BIN)/python -m pytest tests/published

test-spark: .venv/dev.done  ## the tests with Spark
	$(PYTEST) tests/spark

test-others: .venv/dev.done  ## all other tests
	$(PYTEST) $(addprefix --ignore=,$(ANSWERS) tests/published tests/spark)

test-nojit: .venv/dev.done  ## the tests of kernels again, as plain Python
	HYPOTHESIS_PROFILE=nojit NUMBA_DISABLE_JIT=1 $(PYTEST) -m kernels tests

test-kafka: .venv/dev.done  ## the pipeline against a real Kafka; fetches it, and fails where it cannot
	NEARCAST_KAFKA=needed $(BIN)/python -m pytest tests/spark/test_kafka.py

test-s3: .venv/s3.done  ## state and plans in a bucket, against a server that speaks S3; installs it
	NEARCAST_S3=$(CURDIR)/.venv/s3/bin/python $(BIN)/python -m pytest tests/spark/test_s3.py

test-cluster: .venv/dev.done  ## the stream on clusters whose executors are killed, and on a full disk; takes some minutes
	$(BIN)/python -m pytest -m cluster tests/spark

test-peers: .venv/bench.done  ## every peer of the benchmarks that can run here, against plain loops
	$(BIN)/python -m pytest -m "peers or not peers" tests/benchmarks/test_peers.py

lint: .venv/dev.done  ## style, types and the direction of imports
	$(BIN)/ruff format --check --quiet .
	$(BIN)/ruff check --quiet .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: .venv/dev.done  ## put the code into shape
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

soak: .venv/dev.done  ## thousands of generated scenarios against the oracle, and many kills of a pipeline; takes about half an hour
	HYPOTHESIS_PROFILE=soak NEARCAST_KILL_SEEDS=10 $(BIN)/python -m pytest tests/contract tests/partition tests/spark

# A page needs the peers of requirements/bench.txt, and so does the part that is about them alone.
bench: $(if $(filter-out peers,$(PART)),.venv/dev.done,.venv/bench.done)  ## one page beside papers and peers, twelve minutes (FULL=1: hours); PART=name: one benchmark
ifdef PART
	@$(BIN)/python benchmarks/harness/parts.py $(PART) $(if $(SIZE),--size $(SIZE)) -- $(if $(FULL),--full) $(if $(UPDATE),--update) $(OPTIONS)
else
	$(BIN)/python benchmarks/bench.py $(if $(FULL),--full) $(OPTIONS)
endif

bench-list: .venv/dev.done  ## the names that PART takes, with what each asks
	@$(BIN)/python benchmarks/harness/parts.py

bench-report: .venv/dev.done  ## pages and pictures of what was measured, drawn to benchmarks/pages
	$(BIN)/python benchmarks/report/page.py $(OPTIONS)

bench-gate: .venv/dev.done  ## machine-independent counts, compared with the baseline; UPDATE=1 writes a new one
	$(BIN)/python benchmarks/cases/gate.py $(if $(UPDATE),--update) $(OPTIONS)

lock: .venv/dev.done  ## resolve requirements/*.txt again
	$(PIP) install uv
	$(BIN)/uv pip compile --quiet --universal --generate-hashes --no-header --no-annotate --python-version 3.11 \
		--group build --extra report --extra spark pyproject.toml -o requirements/run.txt
	$(BIN)/uv pip compile --quiet --universal --generate-hashes --no-header --no-annotate --python-version 3.11 \
		--group dev --extra report --extra spark -c requirements/run.txt pyproject.toml -o requirements/dev.txt
	$(BIN)/uv pip compile --quiet --universal --generate-hashes --no-header --no-annotate --python-version 3.11 \
		-c requirements/dev.txt requirements/bench.in -o requirements/bench.txt
	$(BIN)/uv pip compile --quiet --universal --generate-hashes --no-header --no-annotate --python-version 3.11 \
		requirements/s3.in -o requirements/s3.txt

clean:  ## remove everything that was made
	rm -rf .venv .coverage .coverage.* .hypothesis .mypy_cache .pytest_cache .ruff_cache .import_linter_cache benchmarks/pages
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

.venv/bin/python:
	@test -n "$(PYTHON)" || { echo "Python 3.11, 3.12 or 3.13 is needed; none was found (or set PYTHON=...)" >&2; exit 1; }
	@echo "Creating .venv with $(PYTHON) ..."
	@$(PYTHON) -m venv .venv || { rm -rf .venv; \
		echo "$(PYTHON) cannot create a virtual environment; on Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }

.venv/run.done: requirements/run.txt pyproject.toml | .venv/bin/python
	@echo "Installing the locked packages ..."
	@$(PIP) install --require-hashes -r requirements/run.txt
	@$(PIP) install --no-deps --no-build-isolation --editable .
	@touch $@

.venv/dev.done: requirements/dev.txt pyproject.toml | .venv/bin/python
	@echo "Installing the locked packages, those for development included ..."
	@$(PIP) install --require-hashes -r requirements/dev.txt
	@$(PIP) install --no-deps --no-build-isolation --editable .
	@touch $@ .venv/run.done

.venv/bench.done: requirements/bench.txt .venv/dev.done
	@echo "Installing the locked packages of the peers ..."
	@$(PIP) install --require-hashes -r requirements/bench.txt
	@touch $@

# In an environment of its own: it needs other versions than Nearcast does.
.venv/s3.done: requirements/s3.txt .venv/dev.done
	@echo "Installing the locked packages of a server that speaks S3 ..."
	@$(BIN)/python -m venv .venv/s3
	@.venv/s3/bin/python -m pip --disable-pip-version-check --quiet install --require-hashes -r requirements/s3.txt
	@touch $@
