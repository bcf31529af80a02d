# make demo        set everything up and train a tiny model on this machine, in the app
# make test        set everything up and pass all tests
# make test-changed  the tests that a change touches; the first time all, to record what each executes
# make setup       the development environment; on a GPU box: make setup-box
# make setup-vllm  vLLM for rollout.backend: vllm; make test-vllm: its tests
# make test-image  the engine's tests with the libraries of a GPU image, in .image; what needs a GPU is skipped
# make soak        the long tests in parts; make soak PART=link one part, make soak PART=list their state
# make docs        the documentation as a site, in build/site; make pictures: its pictures of the views
# make lint, make test-fixtures, make bench (figures), make words, make schema, make clean

SHELL := /bin/bash
PYTHON := .venv/bin/python
# Bytecode is kept even where the environment forbids it: compiling torch takes each process seconds.
PYTEST := OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(PYTHON) -m pytest
PARALLEL := -n auto --maxprocesses 4 --dist worksteal
SLOWEST := --durations=10 --durations-min=1
STAMP := .venv/.setup-done

.PHONY: setup setup-box setup-vllm demo test test-changed test-vllm test-image test-fixtures lint soak bench mutants words schema docs pictures clean

setup: $(STAMP)

# Run again whenever what is installed, or how, has changed.
$(STAMP): pyproject.toml setup.py scripts/setup.sh
	bash scripts/setup.sh
	touch $@

setup-box:
	bash scripts/setup.sh --box

demo: $(STAMP)
	.venv/bin/grpo-tui --demo

test: $(STAMP)
	bash scripts/setup.sh --programs-only
	$(PYTEST) $(PARALLEL) $(SLOWEST) tests

# What each test executes is recorded in .testmondata; see CONTRIBUTING.md for what this does not see.
test-changed: $(STAMP)
	$(PYTEST) $(PARALLEL) --testmon tests

# The tests that read GSM8K and MBPP, on the small fixtures that a clone without the official data uses. Only their files
# are imported.
test-fixtures: $(STAMP)
	GRPO_TEST_DATA=fixture $(PYTEST) $(PARALLEL) -m official_data \
		$(shell grep -rlE 'official_data|gsm8k_dir' tests --include='test_*.py' --exclude-dir={soak,bench,gpu})

lint: $(STAMP)
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy
	.venv/bin/lint-imports

# vLLM pins its torch and transformers: it has an environment of its own, .vllm.
setup-vllm:
	bash scripts/setup.sh --vllm

test-vllm: $(STAMP) setup-vllm
	$(PYTEST) --timeout=3600 tests/soak/test_vllm.py tests/soak/test_vllm_export.py

# A part of make soak.
test-image: $(STAMP)
	OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(PYTHON) scripts/soak.py image

# Long tests in parts of at most 20 minutes; those that passed with these sources are skipped. One part or group:
# make soak PART=link; all parts with their state: make soak PART=list
soak: $(STAMP)
	OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(PYTHON) scripts/soak.py $(PART)

bench: $(STAMP)
	for bench in tests/bench/*.py; do $(PYTHON) $$bench || exit 1; done

# Seeded defects that no test notices (hours; continues where it was).
mutants: $(STAMP)
	$(PYTHON) scripts/mutants.py map
	.mutants/tree/.venv/bin/python scripts/mutants.py run

# Every string a user sees (help, messages, labels), one a line, for a reader to review.
words: $(STAMP)
	@$(PYTHON) scripts/words.py

# Regenerate what is generated from grpo_train/config/sections and grpo_train/config/importing.
schema: $(STAMP)
	.venv/bin/grpo-train schema > config/schema.json
	.venv/bin/grpo-train schema --markdown > docs/configuration.md
	$(PYTHON) scripts/docs.py tables

# The documentation as a site, with every link checked. zensical needs Python 3.11: it has an environment of its own, .docs.
docs: $(STAMP)
	bash scripts/setup.sh --docs
	$(PYTHON) scripts/docs.py build

# The pictures of the views, from golden runs, which are trained where pytest's cache does not have them (ten minutes).
pictures: $(STAMP)
	OMP_NUM_THREADS=1 $(PYTHON) scripts/pictures.py

clean:
	rm -rf .venv .uv .image .docs build *.egg-info
