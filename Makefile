# Verbs of the house; CI calls the same ones. `make help` lists them.
.DEFAULT_GOAL := help
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.built
SOURCES := $(wildcard native/*.c native/*.h native/build.py) setup.py pyproject.toml
DEV := pytest pytest-xdist pytest-timeout hypothesis coverage pytest-cov ruff mypy import-linter clang-format clang-tidy \
       types-psutil types-cffi types-PyYAML types-protobuf types-grpcio 'mfusepy>=3.1' 'grpcio>=1.85' 'grpcio-tools>=1.85' 'protobuf>=7.35'

.PHONY: help build dev run demo test test-lab coverage lint format bench proto check-native lab-vm lab-kernel lab-resctrl lab-runtime lab-cluster install-systemd clean

help: ## list the verbs
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):[^#]*## /\1\t/' | expand -t 18

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "koordlet needs Python 3.11 or newer, $(PYTHON) is older: make PYTHON=python3.11"; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { echo "python3 -m venv failed: apt-get install python3-venv"; exit 1; }

$(STAMP): $(SOURCES) | $(BIN)/python
	@command -v cc >/dev/null || { echo "no C compiler: apt-get install gcc libc6-dev (and python3-dev)"; exit 1; }
	@echo "building koordlet (first time: about a minute)"
	@$(BIN)/python -m pip install -q 'setuptools>=77' wheel 'cffi>=2'
	@$(BIN)/python -m pip install -q --no-build-isolation -e '.[demo]'
	@$(BIN)/python -m compileall -q koordlet
	@touch $@

build: $(STAMP) ## leaves a working .venv/bin/koordlet

$(VENV)/.dev: $(STAMP)
	@$(BIN)/python -m pip install -q $(DEV)
	@touch $@

dev: $(VENV)/.dev ## build, and the tools that tests and lint need

run: build ## build and run the agent on this machine (embedded defaults, no cluster) with a live view
	@$(BIN)/koordlet run --top

demo: build ## what protects an online service from batch work on this machine (root, about two minutes)
	@$(BIN)/koordlet demo

test: dev ## everything that needs no lab: unit, worked, property, closed loop, live cgroups when root
	@$(BIN)/coverage erase
	@$(BIN)/python -m pytest -q -n auto --dist loadfile --cov=koordlet --cov-branch --cov-report= \
	  -m "not live and not live_v1 and not guest and not lab_vm and not lab_resctrl and not lab_runtime and not lab_cluster"
	@$(BIN)/python -m pytest -q -m "live or live_v1" --cov=koordlet --cov-branch --cov-append --cov-report=

test-lab: dev ## tests against the real parts: kernel VM, resctrl file system, containerd with NRI, API server and kubelet
	@tests/labs/install.sh
	@if command -v go >/dev/null; then $(BIN)/python -m tests.labs.binaries containerd kubernetes; \
	 else echo "labs: no go here, the runtime and cluster labs are skipped unless cached (apt-get install golang)"; fi
	@$(BIN)/python -m pytest -q -s -m "lab_vm or lab_resctrl or lab_runtime or lab_cluster" tests/labs \
	  --cov=koordlet --cov-branch --cov-append --cov-report=

coverage: dev ## floors by room over what `make test` and `make test-lab` ran in their own process
	@$(BIN)/coverage json -q
	@$(BIN)/python .ci/floors.py

lab-vm: dev ## a long-lived kernel lab with a hint how to use it
	@tests/labs/install.sh
	@$(BIN)/python -m tests.labs.vm

lab-kernel: dev ## build the kernel lab's kernel with core scheduling, which Debian's lack (root, ten minutes)
	@apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
	  linux-source-6.1 bc flex bison libelf-dev xz-utils >/dev/null
	@$(BIN)/python -m tests.labs.kernels

check-native: ## plain C checks under ASan and UBSan
	@$(MAKE) --no-print-directory -C native/check

lint: dev ## ruff, mypy strict, import contracts, clang-format, clang-tidy
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/clang-format --dry-run --Werror native/*.c native/*.h native/check/*.c
	@$(BIN)/clang-tidy --quiet native/*.c native/check/*.c -- -std=gnu11 -Inative 2>/dev/null

format: dev ## let the formatters have their way
	@$(BIN)/ruff check --fix -q . ; $(BIN)/ruff format -q . ; $(BIN)/clang-format -i native/*.c native/*.h native/check/*.c

bench: build ## cost of a tick as a ratio to a C loop, reaction, protection (root, quiet machine, several minutes)
	@$(BIN)/python bench/tick.py
	@$(BIN)/python bench/reaction.py

proto: dev ## regenerate the wire messages of koordlet/wire from proto/
	@$(BIN)/python -m grpc_tools.protoc -Iproto --python_out=. --pyi_out=. proto/koordlet/wire/*.proto

lab-resctrl: dev ## a long-lived resctrl lab with a hint how to use it (SHAPE=intel-cdp ...)
	@tests/labs/install.sh
	@$(BIN)/python -m tests.labs.resctrl.lab

lab-runtime: dev ## a long-lived containerd with NRI and a hint how to use it
	@tests/labs/install.sh
	@$(BIN)/python -m tests.labs.runtime

lab-cluster: dev ## a long-lived cluster (API server, etcd, kubelet, containerd) with a hint how to use it
	@tests/labs/install.sh
	@$(BIN)/python -m tests.labs.cluster

install-systemd: build ## install the unit, slices and example files (root)
	@systemd/install.sh

clean: ## remove what was built
	rm -rf build dist *.egg-info koordlet/_native*.so $(VENV)
