# `make run` and `make test` do all set-up; `make help` lists the rest.

PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))' 2>/dev/null && echo $$p && break; done)
BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
# A cached kernel does not notice an edit in another file that it calls, so tests compile into a cache of their own.
TEST_CACHE := $(CURDIR)/.venv/test-kernels

.PHONY: help run demo setup test test-spark test-answers test-others test-nojit test-kafka test-s3 test-cluster test-peers lint check format soak \
	bench bench-full bench-shards bench-topk-shards bench-nearest-shards bench-mixed bench-text bench-peers bench-boolean bench-boolean-sweeps bench-similar bench-similar-sweeps bench-topk bench-topk-sweeps bench-topk-scale bench-nearest bench-moving bench-moving-sweeps bench-spark \
	bench-partition bench-gate lock clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-20s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

run: .venv/run.done  ## set up if needed, and run the whole engine on the bundled sample
	@$(BIN)/nearcast demo

demo: run

setup: .venv/dev.done  ## create .venv with everything for development

test: .venv/dev.done  ## set up if needed, and run all tests: compiled, and with the JIT off
	@rm -rf $(TEST_CACHE) .coverage .coverage.*
	@echo "Running the tests, two groups at a time; a group is shown when it is done."
	@$(MAKE) --no-print-directory --jobs=2 --output-sync=target test-spark test-answers test-others test-nojit
	@$(BIN)/coverage combine --quiet
	@$(BIN)/coverage report

check: lint test  ## what must pass before a change lands

# Generated scenarios against the oracle. They run twice, and their coverage is measured with the JIT off, where it includes
# the kernels: measuring takes as long as the tests themselves.
ANSWERS := tests/contract tests/published tests/partition

test-answers: .venv/dev.done  ## the tests against the oracle
	NUMBA_CACHE_DIR=$(TEST_CACHE) $(BIN)/python -m pytest $(ANSWERS)

test-spark: .venv/dev.done  ## the tests with Spark
	NUMBA_CACHE_DIR=$(TEST_CACHE) $(BIN)/coverage run --parallel-mode -m pytest tests/spark

test-others: .venv/dev.done  ## all other tests
	NUMBA_CACHE_DIR=$(TEST_CACHE) $(BIN)/coverage run --parallel-mode -m pytest $(addprefix --ignore=,$(ANSWERS) tests/spark)

test-nojit: .venv/dev.done  ## the tests of kernels again, as plain Python
	HYPOTHESIS_PROFILE=nojit NUMBA_DISABLE_JIT=1 $(BIN)/coverage run --parallel-mode -m pytest -m kernels tests

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

bench: .venv/bench.done  ## where Nearcast stands beside papers and peers: benchmarks/report/quick; about twelve minutes
	$(BIN)/python benchmarks/bench.py $(OPTIONS)

bench-full: .venv/bench.done  ## the same at full size: benchmarks/report/full; takes hours
	$(BIN)/python benchmarks/bench.py --full $(OPTIONS)

bench-shards: .venv/dev.done  ## how far shards carry: every partitioner, 1 to 32 shards
	$(BIN)/python benchmarks/bench_shards.py $(OPTIONS)

bench-topk-shards: .venv/dev.done  ## the same for top-k subscriptions, as in DSkype
	$(BIN)/python benchmarks/bench_topk_shards.py $(OPTIONS)

bench-nearest-shards: .venv/dev.done  ## how even the load of nearest subscriptions is, as in DkM-SKS
	$(BIN)/python benchmarks/bench_nearest_shards.py $(OPTIONS)

bench-mixed: .venv/dev.done  ## the pipeline on Spark with all kinds of subscriptions and a window
	$(BIN)/python benchmarks/bench_mixed.py $(OPTIONS)

bench-text: .venv/dev.done  ## how many tokens a second the analyzer reads
	$(BIN)/python benchmarks/bench_text.py

bench-boolean: .venv/dev.done  ## how fast boolean subscriptions are, and how much they hold
	$(BIN)/python benchmarks/bench_boolean.py $(OPTIONS)

bench-boolean-sweeps: .venv/dev.done  ## the sweeps of the AP-Tree paper against it, as plots; FULL=1 takes hours
	$(BIN)/python benchmarks/bench_boolean_sweeps.py $(if $(FULL),--full) $(OPTIONS)

bench-similar: .venv/dev.done  ## how fast similarity subscriptions are, beside the filters of STAMP
	$(BIN)/python benchmarks/bench_similar.py $(OPTIONS)

bench-similar-sweeps: .venv/dev.done  ## the sweeps of the STAMP paper against its filters, as plots; FULL=1 takes hours
	$(BIN)/python benchmarks/bench_similar_sweeps.py $(if $(FULL),--full) $(OPTIONS)

bench-topk: .venv/dev.done  ## how fast top-k feeds over a window are kept up to date, beside other ways; SIZE=5000000: as in the paper
	$(BIN)/python benchmarks/bench_feeds.py topk $(if $(SIZE),--size $(SIZE) --before 1000000 --json benchmarks/report/feeds/topk-$(SIZE).json,--rivals) $(OPTIONS)

bench-topk-sweeps: .venv/dev.done  ## the sweeps of the Skype paper against its rivals, as plots; FULL=1 takes a day
	$(BIN)/python benchmarks/bench_topk_sweeps.py $(if $(FULL),--full) $(OPTIONS)

bench-topk-scale: .venv/dev.done  ## the same sweeps at larger sizes, Nearcast alone, as plots; FULL=1: millions, an hour
	$(BIN)/python benchmarks/bench_topk_scale.py $(if $(FULL),--full) $(OPTIONS)

bench-nearest: .venv/dev.done  ## how fast k-nearest feeds are kept up to date; SIZE=10000000: as in the paper
	$(BIN)/python benchmarks/bench_feeds.py nearest --k 10 $(if $(SIZE),--size $(SIZE) --before 1000000 --messages 1000 --rounds 10 --churn 100 --k-drawn --json benchmarks/report/feeds/nearest-$(SIZE).json) $(OPTIONS)

bench-moving: .venv/dev.done  ## how fast subscribers move, with their differences, while messages come
	$(BIN)/python benchmarks/bench_moving.py $(OPTIONS)

bench-peers: .venv/bench.done  ## boolean subscriptions beside PostGIS, Lucene Monitor, DuckDB, SedonaDB and Spark's own join
	$(BIN)/python benchmarks/bench_peers.py $(OPTIONS)

bench-moving-sweeps: .venv/dev.done  ## the sweeps of the AP+-Tree paper beside a grid with ranked lists, as plots
	$(BIN)/python benchmarks/bench_moving_sweeps.py $(OPTIONS)

bench-spark: .venv/dev.done  ## the pipeline on Spark beside an embedded broker and a plain join
	$(BIN)/python benchmarks/bench_spark.py $(OPTIONS)

bench-partition: .venv/dev.done  ## how subscriptions are best divided among shards
	$(BIN)/python benchmarks/bench_partition.py $(OPTIONS)

bench-gate: .venv/dev.done  ## counts that no machine changes, held against the baseline; UPDATE=1 writes it anew
	$(BIN)/python benchmarks/gate.py $(if $(UPDATE),--update) $(OPTIONS)

lock: .venv/dev.done  ## resolve requirements/*.txt anew
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
	rm -rf .venv .coverage .coverage.* .hypothesis .mypy_cache .pytest_cache .ruff_cache .import_linter_cache
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
