# `make demo` and `make test` need python3 (3.11 or newer, with venv) and nothing else.
# Everything they install or write stays below this folder.

VENV := .venv
BIN := $(VENV)/bin
export PIP_CACHE_DIR := $(CURDIR)/.cache/pip
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export JAX_PLATFORMS ?= cpu
# Else every worker process of the tests would compile all of loaderx anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test tests test-large test-owners test-ray test-grain fuzz lint types bench bench-quick bench-devices clean

demo: $(VENV)/demo.stamp
	$(BIN)/loaderx demo

# mypy, which uses one core, runs beside the first tests.
test: $(VENV)/dev.stamp
	$(MAKE) --no-print-directory -j 2 lint types tests

tests: $(VENV)/dev.stamp
	$(BIN)/python -m pytest -n 3 --dist worksteal

lint: $(VENV)/dev.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/dev.stamp
	$(BIN)/mypy

# Damaged files, folders, caches, servers and states; `make fuzz FIRST=3000` goes on at a seed.
FIRST ?= 0
CASES ?= 60000
fuzz: $(VENV)/dev.stamp
	$(BIN)/python tests/support/fuzz.py all --first $(FIRST) --count $(CASES)

# Readers against the libraries that own the formats (TFDS, webdataset, ...), in an environment of its own.
test-owners: $(VENV)-owners/stamp
	$(VENV)-owners/bin/python -m pytest -m owners tests/owners --ignore tests/owners/test_keras.py --ignore tests/owners/ray
	KERAS_BACKEND=jax $(VENV)-owners/bin/python -m pytest -m owners tests/owners/test_keras.py

# Folders of 10,000 shards in every format, the making of an index of 10^8 records, a save that is
# killed 50 times, and the memory of workers that share a cache.
test-large: $(VENV)/dev.stamp
	$(BIN)/python -m pytest -m large tests/sources tests/stages tests/loader

$(VENV)-owners/stamp: pyproject.toml
	python3 -m venv $(VENV)-owners
	$(VENV)-owners/bin/python -m pip install -q -e ".[dev,owners]"
	touch $@

# `engines.Ray` on a cluster of two nodes on this machine, in an environment of its own: the contract of
# engines, the blocks of docs/cluster.md, the examples, and faults: `make test-ray FAULTS=200` makes
# 200 of them.  Takes about five minutes on two idle cores, ten on busy ones.
FAULTS ?= 20
test-ray: $(VENV)-ray/stamp
	LOADERX_FAULTS=$(FAULTS) $(VENV)-ray/bin/python -m pytest -m owners -o faulthandler_timeout=300 tests/owners/ray

$(VENV)-ray/stamp: pyproject.toml
	python3 -m venv $(VENV)-ray
	$(VENV)-ray/bin/python -m pip install -q -e ".[dev,ray]" "ray[train]"
	touch $@

# `loaderx.compat.grain` against the Grain that it reproduces: the same bytes, states both ways, then
# Grain's own tests.  After that, in an environment of its own, what the newest Grain on PyPI does
# otherwise: that is listed, and never fails the target.
test-grain: $(VENV)-grain/stamp $(VENV)-grain-newest/stamp
	$(VENV)-grain/bin/python -m pytest -m owners tests/owners/grain
	$(BIN)/python tests/owners/grain/run_tests.py $(VENV)-grain
	$(VENV)-grain-newest/bin/python -m pip install -q --upgrade grain
	$(VENV)-grain-newest/bin/python tests/owners/grain/newest.py

$(VENV)-grain/stamp: tests/owners/grain/requirements.txt $(VENV)/dev.stamp
	python3 -m venv $(VENV)-grain
	$(VENV)-grain/bin/python -m pip install -q -e ".[dev]" -r tests/owners/grain/requirements.txt
	touch $@

$(VENV)-grain-newest/stamp: tests/owners/grain/requirements.txt
	python3 -m venv $(VENV)-grain-newest
	sed "s/^grain==.*/grain/" tests/owners/grain/requirements.txt > $(VENV)-grain-newest/requirements.txt
	$(VENV)-grain-newest/bin/python -m pip install -q -e . -r $(VENV)-grain-newest/requirements.txt
	touch $@

# loaderx's own figures, each against its bar; then loaderx beside its peers, each of them in an
# environment of its own below .venv-bench.  The latter takes about two hours.
bench: $(VENV)/bench.stamp
	$(BIN)/python benchmarks/core.py
	$(BIN)/python benchmarks/processes.py
	$(BIN)/python benchmarks/streams.py
	$(BIN)/python benchmarks/saving.py
	$(BIN)/python benchmarks/auto.py
	$(BIN)/python benchmarks/corners.py
	$(BIN)/python benchmarks/run.py

# Does it all still run, with all peers, on small sizes?
bench-quick: $(VENV)/bench.stamp
	$(BIN)/python -m pytest -m benchmarks
	$(BIN)/python benchmarks/run.py --quick

bench-devices: $(VENV)/dev.stamp
	$(BIN)/python benchmarks/devices.py

$(BIN)/python:
	python3 -m venv $(VENV)

$(VENV)/demo.stamp: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install -q -e ".[demo]"
	touch $@

$(VENV)/dev.stamp: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install -q -e ".[dev]"
	touch $@ $(VENV)/demo.stamp

$(VENV)/bench.stamp: $(VENV)/dev.stamp
	$(BIN)/python -m pip install -q -e ".[dev,bench]"
	touch $@

clean:
	rm -rf $(VENV) $(VENV)-ray $(VENV)-grain $(VENV)-grain-newest .venv-bench .bench-data .cache .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist
