# The whole of R2V's tooling. `make mrp` and `make test` need nothing but Python >= 3.11, make and pip.
PYTHON ?= python3
BIN := .venv/bin
export OMP_NUM_THREADS ?= 1
export HF_HUB_OFFLINE ?= 1
export TOKENIZERS_PARALLELISM ?= false

.PHONY: mrp test slurm check install install-dev lint types layers clean

mrp: .venv/.core  ## the whole pipeline on the bundled benchmark, in this process
	$(BIN)/python -m r2v run --config configs/mrp.yaml

test: .venv/.dev slurm  ## every test; those on a real Slurm are skipped where it can't be installed
	$(BIN)/python -m pytest -n 2 --dist loadfile

slurm:  ## the Debian packages for tests/slurm, as root or with passwordless sudo; else one line says what lacks
	@bash tests/slurm/install.sh

check: .venv/.dev lint types layers test  ## what CI runs

lint: .venv/.dev
	$(BIN)/ruff check r2v tests benchmarks scripts examples

types: .venv/.dev
	$(BIN)/mypy

layers: .venv/.dev
	$(BIN)/lint-imports --no-cache

install: .venv/.core
install-dev: .venv/.dev

# torch first and exactly: a looser range would bring the newest build with several GB of CUDA packages.
.venv/.core: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check $$(grep '^torch==' constraints.txt)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	touch $@

.venv/.dev: .venv/.core
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $@

clean:  ## everything that was made, not what was downloaded
	rm -rf data/mrp outputs results .mypy_cache .ruff_cache .pytest_cache
