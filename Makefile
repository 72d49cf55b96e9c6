# Howdah's entry points; `make` alone lists them.
.DEFAULT_GOAL := help
.PHONY: help setup setup-gpu demo hadoop airflow lessons test test-all wheels lint format lock bench bench-gpu doctor clean

PYTHON_ENV := .venv/bin/python
FRAMEWORK ?= tensorflow
GROUP ?=
CLUSTER ?=
ONLY ?=
CUDA_ARCHS ?=
PORT ?= 8080
# 1: a mini cluster is started as root, though other users work on this machine (docs/minicluster.md).
SHARED ?=
ifneq ($(SHARED),)
export HOWDAH_MINICLUSTER_SHARED := $(SHARED)
endif

help: ## list the targets
	@echo "Howdah: text on Hadoop or on one machine to a trained classifier."
	@echo
	@awk -F':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## everything that tests, Airflow and benches need: apt packages, .venv, Horovod (a second run: nothing to do)
	@tools/setup.sh

setup-gpu: ## a GPU environment, .venv-gpu-FRAMEWORK (FRAMEWORK=torch, or tensorflow: it needs a CUDA toolkit)
	@tools/setup.sh --gpu $(FRAMEWORK) --cuda-archs "$(CUDA_ARCHS)"

demo: ## corpus -> ETL -> two-process training -> prediction (FRAMEWORK=tensorflow|torch, CLUSTER=1)
	@FRAMEWORK=$(FRAMEWORK) CLUSTER=$(CLUSTER) tools/demo.sh

hadoop: setup ## real HDFS, YARN and Hive metastore daemons on loopback (docs/minicluster.md, SHARED=1)
	@.venv/bin/python -m tools.minicluster start --metastore

airflow: setup ## Airflow on loopback with the DAGs; Ctrl-C ends it (CLUSTER=1, FRAMEWORK=torch, PORT=8080)
	@$(PYTHON_ENV) -m tools.local_airflow.run --port $(PORT) --framework $(FRAMEWORK) $(if $(CLUSTER),--cluster)

lessons: setup ## distributed training by short scripts, their figures and pictures on one page (ONLY="07 18")
	@$(PYTHON_ENV) -m tools.lessons $(ONLY)

wheels: setup ## Horovod's wheel for machines without a compiler, into dist/wheels (docs/setup.md)
	@$(PYTHON_ENV) tools/build_horovod.py --portable --output dist/wheels

test: setup ## every test once, at most 40 minutes (GROUP="core mpi": these groups)
	@$(PYTHON_ENV) tools/run_tests.py $(GROUP)

test-all: setup ## the full matrix, hours; goes on where it stopped (GROUP=mpi: that group; BESIDE=1: two groups at a time)
	@$(PYTHON_ENV) tools/run_tests.py --all $(if $(BESIDE),--beside) $(GROUP)

lint: setup ## ruff: rules and format
	@$(PYTHON_ENV) -m ruff check .
	@$(PYTHON_ENV) -m ruff format --check .

format: setup ## ruff: fix what it can
	@$(PYTHON_ENV) -m ruff check --fix .
	@$(PYTHON_ENV) -m ruff format .

lock: setup ## resolve requirements*.txt into lock files with hashes
	@$(PYTHON_ENV) tools/lock_requirements.py

bench: setup ## benchmarks, each beside its peer (AG_NEWS=path for the accuracy bench)
	@$(PYTHON_ENV) -m bench

bench-gpu: setup ## all that only a GPU can say, in 10 minutes (docs/decisions/gpus.md)
	@tools/setup.sh --gpu torch --cuda-archs "$(CUDA_ARCHS)"
	@.venv-gpu-torch/bin/python -m bench gpu

doctor: setup ## check this machine; a remedy for each failing line
	@.venv/bin/howdah doctor

clean: ## remove build outputs and caches of tools; .venv, runs, caches, mini cluster, Airflow stay
	[ ! -d build ] || find build -mindepth 1 -maxdepth 1 -not -name minicluster -not -name airflow -exec rm -rf {} +
	rm -rf dist *.egg-info .pytest_cache .ruff_cache .hypothesis spark-warehouse \
	    metastore_db derby.log
	find . -name __pycache__ -type d -not -path './.venv*' -prune -exec rm -rf {} +
