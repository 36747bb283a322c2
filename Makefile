# make demo | test | test-slow | docs | lint | bench | bench-step
# PyPI's torch for Linux carries CUDA (gigabytes). For the CPU build of PyTorch's own index:
#   make demo TORCH_INDEX=https://download.pytorch.org/whl/cpu
PYTHON ?= python3
VENV ?= .venv
TORCH_INDEX ?=

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
INDEX := $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX))
GLORO := .venv-gloro
GLORO_PYTHON ?= $(PYTHON)

.PHONY: demo test test-slow docs lint bench bench-step clean

demo: $(VENV)/.demo
	$(BIN)/python examples/digits.py
	@echo
	$(BIN)/python examples/satellite.py

test: $(VENV)/.dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/python -m pytest --numprocesses auto

test-slow: $(VENV)/.dev
	$(BIN)/python -m pytest --numprocesses auto -m slow --durations 10
	$(BIN)/python benchmarks/tightness.py
	$(BIN)/python benchmarks/pages.py

docs: $(VENV)/.dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict
	@echo 'Open site/index.html in a browser: it needs no server and no network.'

lint: $(VENV)/.dev
	$(BIN)/ruff check --fix
	$(BIN)/ruff format
	$(BIN)/mypy

bench: $(VENV)/.dev $(GLORO)/.ready
	$(BIN)/python benchmarks/head.py --gloro $(GLORO)/bin/python
	$(BIN)/python benchmarks/pages.py

bench-step: $(VENV)/.dev $(GLORO)/.ready
	$(BIN)/python benchmarks/step.py --gloro $(GLORO)/bin/python
	$(BIN)/python benchmarks/pages.py

$(VENV)/.demo: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) $(INDEX) torch
	$(PIP) $(INDEX) --editable '.[report]'
	@touch $@

$(VENV)/.dev: $(VENV)/.demo
	$(PIP) $(INDEX) --editable '.[report,docs,dev,onnx,serve]'
	@touch $@

# gloro, the other implementation of the paper, for comparison only; it needs an old TensorFlow, so an environment of its own.
$(GLORO)/.ready:
	$(GLORO_PYTHON) -m venv $(GLORO)
	$(GLORO)/bin/python -m pip install --quiet --disable-pip-version-check gloro==1.1.1 tensorflow==2.15.1
	@touch $@

clean:
	rm -rf $(VENV) $(GLORO) .pytest_cache .mypy_cache .ruff_cache .hypothesis runs site
