# Each target sets up all that it needs in .venv, says what it does, and reuses what is there.
# Needed: Python 3.11 or newer, make, a C++ compiler (only to build the llama.cpp oracle, once).

PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin

.PHONY: test-bf16 test-bf16-xray test-xray-validator-selftest test-xray-validator-nightly
.PHONY: campaign xray-vision-parity help demo test check format golden docs wheel xray clean

help:
	@echo "make demo     SmolLM2-135M answers a prompt through generated code"
	@echo "make test     the whole test suite"
	@echo "make test-bf16                     every test of bf16, nightly ones too, and the next two"
	@echo "make test-bf16-xray                X-Ray's own tests, and the light self-test"
	@echo "make test-xray-validator-selftest  known faults, diagnosed blind: the light score"
	@echo "make test-xray-validator-nightly   the whole catalogue, resumable; writes the scoreboard"
	@echo "make check    format, lint, types, import direction, generated code, docs"
	@echo "make format   format the code"
	@echo "make golden   rewrite the golden files and published schemas; read the diff"
	@echo "make xray     diagnose MODEL= against BACKEND=pytorch|llamacpp, into XRAY_OUTPUT_DIR="
	@echo "make xray-vision-parity   the same for an encoder of images: CHECKPOINT=, PIXELS= a .npy"
	@echo "make campaign the fidelity of SmolLM2's quantisations, published to CAMPAIGN_OUTPUT_DIR="
	@echo "make wheel    build the wheel and the sdist, and try the wheel from another folder"
	@echo "make clean    remove what the targets made here; the user's cache stays"

demo:
	@$(PYTHON) tools/environment.py demo
	@$(BIN)/python tools/demo.py

test:
	@$(PYTHON) tools/environment.py test
	@echo "==> fetching the trained models that the tests read"
	@$(BIN)/python tools/fetch_models.py
	$(BIN)/python -m pytest -q --durations=15 -m "not nightly"

test-bf16-xray: test-xray-validator-selftest
	$(BIN)/python -m pytest -q -m "not nightly and not real_model" tests/xray tests/validator \
	  tests/schemas

test-bf16: test-bf16-xray
	$(BIN)/python -m pytest -q -m "not real_model" -k "bf16 or bfloat16"

test-xray-validator-selftest:
	@$(PYTHON) tools/environment.py test
	$(BIN)/cke validate --light --jobs 2 --out $(or $(XRAY_OUTPUT_DIR),.venv/validate)

# the score becomes a page of the docs whatever it says; the exit code is that of the score
test-xray-validator-nightly: NIGHTLY := $(or $(XRAY_OUTPUT_DIR),.venv/nightly)
test-xray-validator-nightly:
	@$(PYTHON) tools/environment.py test
	$(BIN)/cke validate --nightly --jobs 2 --out $(NIGHTLY); code=$$?; \
	  cp $(NIGHTLY)/selftest.md docs/reference/validator-scoreboard.md && exit $$code

check:
	@$(PYTHON) tools/environment.py test
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/cke build --check
	$(BIN)/mkdocs build --strict --quiet --site-dir .venv/site

format:
	@$(PYTHON) tools/environment.py test
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

golden:
	@$(PYTHON) tools/environment.py test
	$(BIN)/cke build --library
	$(BIN)/python -m pytest -q --update-golden tests -m "not nightly and not slow"

docs:
	@$(PYTHON) tools/environment.py test
	$(BIN)/mkdocs serve

wheel:
	@$(PYTHON) tools/environment.py test
	@$(BIN)/python tools/try_wheel.py

BACKEND ?= pytorch
XRAY_OUTPUT_DIR ?= runs/xray-$(BACKEND)

# the recipe ends with the exit code of cke; make shows it, and itself exits 2
xray:
	@test -n "$(MODEL)" || { echo "make xray needs MODEL=, a model folder or .gguf file"; exit 3; }
	@test -e "$(MODEL)" || { echo "make xray: there is no model at $(MODEL)"; exit 3; }
	@$(PYTHON) tools/environment.py test
	$(BIN)/cke xray --model "$(MODEL)" --oracle $(BACKEND) --out "$(XRAY_OUTPUT_DIR)" \
	  $(if $(CIRCUIT),--circuit "$(CIRCUIT)")

CAMPAIGN_OUTPUT_DIR ?= runs/campaign

campaign:
	@$(PYTHON) tools/environment.py test
	MODEL="$$($(BIN)/python tools/fetch_models.py smollm2)/SmolLM2-135M-Instruct.Q4_1.gguf" \
	  $(BIN)/cke fidelity campaign examples/campaigns/smollm2.toml --out "$(CAMPAIGN_OUTPUT_DIR)"
	$(BIN)/cke fidelity leaderboard "$(CAMPAIGN_OUTPUT_DIR)/artifact"
	$(BIN)/cke fidelity publish "$(CAMPAIGN_OUTPUT_DIR)/artifact" "$(CAMPAIGN_OUTPUT_DIR)/published"

# of vision, transformers' DINOv2 alone has a circuit: what has none is told so, and is no pass
xray-vision-parity:
	@test "$(BACKEND)" = pytorch || { \
	  echo "make xray-vision-parity: no vision circuit for BACKEND=$(BACKEND)"; exit 3; }
	@test -n "$(CHECKPOINT)" || { \
	  echo "make xray-vision-parity needs CHECKPOINT=, a model folder"; exit 3; }
	@test -e "$(CHECKPOINT)" || { \
	  echo "make xray-vision-parity: there is no model at $(CHECKPOINT)"; exit 3; }
	@$(PYTHON) tools/environment.py test
	$(BIN)/cke xray --model "$(CHECKPOINT)" --oracle $(BACKEND) --out "$(XRAY_OUTPUT_DIR)" \
	  $(if $(PIXELS),--pixels "$(PIXELS)")

clean:
	rm -rf .venv build dist site *.egg-info src/*.egg-info .pytest_cache .mypy_cache .ruff_cache
