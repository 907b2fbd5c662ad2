# Every target sets up what it needs: a virtual environment in .venv, pinned by constraints.txt.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test test-all test-without-torch soak fuzz lint bench docs clean

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing PyTorch and the other dependencies into $(VENV): a large download, once; minutes."
	$(BIN)/python -m pip install --quiet --upgrade "pip>=24"
	$(BIN)/python -m pip install --quiet --constraint constraints.txt "torch==2.13.0"
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev]"
	touch $(STAMP)

demo: $(STAMP)
	$(BIN)/spdl-async demo

test: $(STAMP)
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not alone"
	$(BIN)/python -m pytest -m alone

# Every case; of a test with 24 cases or more `make test` runs a fixed part, a half to a quarter.
test-all: $(STAMP)
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not alone" --all-cases
	$(BIN)/python -m pytest -m alone

# The engine needs no torch: a third of those cases also run on a newer Python without it (`make test` covers
# all of them, and uvloop).
NEWER ?= python3.13
test-without-torch:
	test -x .venv-newer/bin/python || $(NEWER) -m venv .venv-newer
	@echo "Installing the dependencies without PyTorch into .venv-newer, once."
	.venv-newer/bin/python -m pip install --quiet --upgrade "pip>=24"
	.venv-newer/bin/python -m pip install --quiet --constraint constraints.txt numpy aiofiles uvloop pytest pytest-asyncio pytest-timeout pytest-xdist mypy hypothesis
	.venv-newer/bin/python -m pip install --quiet --no-deps --editable .
	.venv-newer/bin/python -m pytest -n 2 --dist worksteal --sample 3 -m "not torch and not alone" -k "not uvloop" tests/contract tests/stopping tests/citizenship tests/test_layers.py tests/test_api.py

# Random programs for half an hour: nothing may be wrong, and memory, threads and descriptors stay flat.
SOAK_SECONDS ?= 1800
SOAK_SEED ?= 1000000
soak: $(STAMP)
	$(BIN)/python tests/chaos.py --soak --seconds $(SOAK_SECONDS) --seed $(SOAK_SEED)

# 10,000 damaged files for every decoder and archive reader: the documented errors or data, no crash, no hang,
# nothing on stderr, bounded memory. `make test` takes 1,000 of them.
FUZZ_FILES ?= 10000
FUZZ_FIRST ?= 0
fuzz: $(STAMP)
	$(BIN)/python tests/io/fuzz_files.py --files $(FUZZ_FILES) --first $(FUZZ_FIRST)

lint: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

bench: $(STAMP)
	$(BIN)/python -m benchmarks.engine
	$(BIN)/python -m benchmarks.images
	$(BIN)/python -m benchmarks.archives
	$(BIN)/python -m benchmarks.arrays
	$(BIN)/python -m benchmarks.storage
	$(BIN)/python -m benchmarks.media
	$(BIN)/python -m benchmarks.cache
	$(BIN)/python -m benchmarks.gpu

docs: $(STAMP)
	$(BIN)/sphinx-build -W --keep-going -b html docs docs/_build/html

clean:
	rm -rf $(VENV) docs/_build .mypy_cache .ruff_cache .pytest_cache .hypothesis
