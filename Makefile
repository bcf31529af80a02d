# make demo   set everything up and train a tiny model on this machine, in the app
# make test   set everything up and pass all tests
# make lint, make soak (long runs), make bench (figures), make setup, make clean

SHELL := /bin/bash
PYTEST := .venv/bin/python -m pytest
STAMP := .venv/.setup-done

.PHONY: setup demo test lint soak bench clean

setup: $(STAMP)

# Again whenever what is installed, or how, has changed.
$(STAMP): pyproject.toml scripts/setup.sh
	bash scripts/setup.sh
	touch $@

demo: $(STAMP)
	.venv/bin/grpo-tui --demo

test: $(STAMP)
	bash scripts/setup.sh --programs-only
	OMP_NUM_THREADS=1 $(PYTEST) -n auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder tests

lint: $(STAMP)
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy
	.venv/bin/lint-imports

soak: $(STAMP)
	OMP_NUM_THREADS=1 $(PYTEST) --timeout=3600 -s tests/soak

bench: $(STAMP)
	for bench in tests/bench/*.py; do .venv/bin/python $$bench || exit 1; done

clean:
	rm -rf .venv .uv build *.egg-info
