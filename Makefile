# Two commands do everything: `make run` and `make test`. Each sets up what it needs.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
WORKERS ?= 2

.PHONY: run test e2e test-slow test-browser lint bench results setup clean \
  paper-filmtrust paper-lastfm-2k paper-lastfm-2k-listening paper-amazon-video paper-qb-article \
  paper-qb-article-subset ablation rho does-sam-help does-sam-help-filmtrust privacy-accuracy \
  privacy-cost devices poisoning landscape

run: $(READY)  ## Train FedRecGEL on MovieLens-100K with Flower and print the results
	$(BIN)/fedrecgel run $(ARGS)

test: $(READY)  ## The whole suite but slow tests and faults
	$(BIN)/pytest -m "not slow and not e2e" -n $(WORKERS) $(ARGS)
	$(BIN)/pytest -m "e2e and not slow and not faults" $(ARGS)

e2e: $(READY)  ## Real processes, killed and restarted: minutes
	$(BIN)/pytest -m "(e2e or faults) and not slow" $(ARGS)

test-slow: $(READY)  ## Tests that take minutes each
	$(BIN)/pytest -m slow $(ARGS)

test-browser: $(READY)  ## The HTML report in headless Chromium; installs Debian's if there is none
	command -v chromium >/dev/null && command -v chromedriver >/dev/null || \
	  { apt-get update -qq && apt-get install -qq --no-install-recommends chromium chromium-driver; }
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[browser]'
	$(BIN)/pytest -m browser $(ARGS)

lint: $(READY)  ## Formatting, lint rules and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

bench: $(READY)  ## Every benchmark of benchmarks/, results into benchmarks/results/ (ARGS=--quick)
	@set -e; for file in $(wildcard benchmarks/bench_*.py); do \
	  echo "== $$file"; $(BIN)/python $$file $(ARGS); done

results: $(READY)  ## docs/results.md: all strategies and references; hours (ARGS="--dataset NAME=PATH")
	$(BIN)/python benchmarks/write_results.py $(ARGS)

# The paper's experiments (docs/sweeps.md): data by these variables, more settings by ARGS.
FEDRECGEL_DATA    ?= ../shared/data
FILMTRUST         ?= $(FEDRECGEL_DATA)/filmtrust/filmtrust-ratings.txt
LASTFM            ?= $(FEDRECGEL_DATA)/lastfm_2k/last-fm-2k-ratings.dat.gz
LASTFM_LISTENING  ?= $(FEDRECGEL_DATA)/lastfm_2k/user_artists.dat
AMAZON_VIDEO      ?= $(FEDRECGEL_DATA)/amazon_video/amazon-video-ratings.dat
QB_ARTICLE        ?= $(FEDRECGEL_DATA)/qb_article/QB-article.csv
ML_1M             ?= $(FEDRECGEL_DATA)/ml_1m/ml-1m-implicit.csv.gz
QB_ARTICLE_SUBSET ?= $(FEDRECGEL_DATA)/qb_article_subset/QB-article-subset.csv

# $(call data,VARIABLE): refuse a file that is not there. $(call experiment,SWEEP,OVERRIDES,HOW): make it,
# then report what there is, also when a job failed; the status is then the sweep's.
data = @test -f "$($(1))" || { echo "there is no file $($(1)): make $@ $(1)=/path/to/file (docs/data.md)"; exit 2; }
experiment = @$(BIN)/fedrecgel sweep $(1) $(2) --name $(1) --runs runs $(ARGS); made=$$?; \
  test $$made -le 1 || exit $$made; $(BIN)/fedrecgel report runs/$(1) --out runs/$(1)/report $(3) && exit $$made

paper-filmtrust: $(READY)  ## The paper's table on FilmTrust, with references
	$(call data,FILMTRUST)
	$(call experiment,paper_filmtrust,dataset.path="$(FILMTRUST)")

paper-lastfm-2k: $(READY)  ## … on LastFM-2K, tag assignments
	$(call data,LASTFM)
	$(call experiment,paper_lastfm_2k,dataset.path="$(LASTFM)")

paper-lastfm-2k-listening: $(READY)  ## … on LastFM-2K, listening counts
	$(call data,LASTFM_LISTENING)
	$(call experiment,paper_lastfm_2k_listening,dataset.path="$(LASTFM_LISTENING)")

paper-amazon-video: $(READY)  ## … on Amazon-Video
	$(call data,AMAZON_VIDEO)
	$(call experiment,paper_amazon_video,dataset.path="$(AMAZON_VIDEO)")

paper-qb-article: $(READY)  ## … on QB-article, the full file
	$(call data,QB_ARTICLE)
	$(call experiment,paper_qb_article,dataset.path="$(QB_ARTICLE)")

paper-qb-article-subset: $(READY)  ## … on a public part of QB-article: not comparable
	$(call data,QB_ARTICLE_SUBSET)
	$(call experiment,paper_qb_article_subset,dataset.path="$(QB_ARTICLE_SUBSET)")

ablation: $(READY)  ## No, shared, private, both perturbations, on FilmTrust
	$(call data,FILMTRUST)
	$(call experiment,ablation,dataset.path="$(FILMTRUST)")

rho: $(READY)  ## The radii over the paper's range, on FilmTrust
	$(call data,FILMTRUST)
	$(call experiment,rho,dataset.path="$(FILMTRUST)")

landscape: $(READY)  ## The minimum without and with perturbation: sharpness and surfaces, FilmTrust
	$(call data,FILMTRUST)
	$(BIN)/fedrecgel sweep landscape dataset.path="$(FILMTRUST)" --name landscape --runs runs $(ARGS)
	@for seed in 0 1 2; do $(BIN)/fedrecgel landscape landscape/rho_shared_0-s$$seed \
	  landscape/rho_shared_0.02-s$$seed --output runs --out runs/landscape/report/landscape-s$$seed \
	  || exit $$?; done
	$(BIN)/fedrecgel report runs/landscape --out runs/landscape/report

does-sam-help: $(READY)  ## Radii that each chose their learning rate, MovieLens-100K
	$(call experiment,does_sam_help)

does-sam-help-filmtrust: $(READY)  ## … FilmTrust
	$(call data,FILMTRUST)
	$(call experiment,does_sam_help_filmtrust,dataset.path="$(FILMTRUST)")

privacy-accuracy: $(READY)  ## Figures against ε, FedRecGEL and FedNCF, MovieLens-1M (docs/dp.md)
	$(call data,ML_1M)
	$(call experiment,privacy_accuracy,dataset.path="$(ML_1M)")

privacy-cost: $(READY)  ## What each protection costs when nobody attacks, MovieLens-100K
	$(call experiment,privacy_cost)

devices: $(READY)  ## Rounds of simulated phones, synchronous and asynchronous, MovieLens-100K
	$(call experiment,devices)

poisoning: $(READY)  ## Attacks of malicious users and defences against them, MovieLens-100K
	$(BIN)/fedrecgel sweep poisoning --name poisoning --runs runs $(ARGS)
	$(BIN)/python -m experiments.poisoning runs/poisoning

setup: $(READY)  ## The virtual environment alone

# MovieLens-100K comes with the recbole wheel; its own dependencies are not needed.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.11")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	$(BIN)/python -m pip install --quiet --no-deps --constraint constraints.txt recbole
	touch $(READY)

clean:  ## Stop the local SuperLink, remove the environment and caches (runs/ stays)
	-test ! -x $(BIN)/fedrecgel || $(BIN)/fedrecgel stop
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
