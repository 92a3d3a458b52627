# Everything a person or the CI runs. `make` alone lists the targets.
CARGO ?= cargo
GO ?= go
OUT := target

# All packages at once, so that all of these build one graph of dependencies.
TESTS := --locked --workspace --lib --bins --tests
# Makes private parsers public, for fuzz/.
FUZZING := pando-checkpoint/fuzzing,pando-node/fuzzing,pando-pager/fuzzing,pando-server/fuzzing,pando-store/fuzzing
HOST_TESTS := $(CARGO) test --locked --workspace --test host --

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

serve: setup-demo build ## sets up, builds and starts a server for E2B's SDKs; prints what they need
	@scripts/serve.sh

setup: ## installs the missing tools (apt-get); changes nothing that is there
	@scripts/setup.sh

setup-demo: ## the same without what only the tests need
	@scripts/setup.sh --demo

build: examples ## the pando binary (release) and the example services
	$(CARGO) build --release --locked -p pando

dist: ## the binary to ship: starts are 6 % faster, building takes minutes more
	$(CARGO) build --profile dist --locked -p pando

install: $(if $(PANDO_BINARY),,dist) ## the binary, its systemd unit and completions; starts or upgrades the server. PREFIX, DESTDIR, BASE
	@PREFIX='$(PREFIX)' DESTDIR='$(DESTDIR)' BASE='$(BASE)' scripts/install.sh install $(or $(PANDO_BINARY),$(OUT)/dist/pando)

uninstall: ## removes what `make install` has placed, and running sandboxes. Keeps the state; PURGE=1 removes it
	@PREFIX='$(PREFIX)' DESTDIR='$(DESTDIR)' PURGE='$(PURGE)' scripts/install.sh uninstall

examples: $(OUT)/examples/geo-go

$(OUT)/examples/geo-go: $(wildcard examples/geo-go/*.go) examples/geo-go/go.mod
	mkdir -p $(@D)
	cd examples/geo-go && CGO_ENABLED=0 $(GO) build -trimpath -o $(abspath $@) .

base: ## the root filesystem of the template `base`, from Debian packages; needs root
	@scripts/base.sh

programs: ## the programs that the tests fork
	$(MAKE) -C tests/programs OUT=$(abspath $(OUT))/programs

demo: setup-demo ## warms three real services, forks them, prints the comparison, cleans up
	@scripts/demo.sh

test: setup examples programs ## all tests; the host tests need root
	$(CARGO) build $(TESTS)
	@CARGO=$(CARGO) scripts/unit-tests.sh $(TESTS)
	$(HOST_TESTS)

sdk-test: ## the real E2B SDKs drive a server: tests/sdk; needs root, npm and a network for the SDKs
	$(CARGO) build $(TESTS)
	@scripts/sdk.sh

additions-test: ## our additions to the SDKs, examples, guide and `pando mcp` on a real server; needs root, npm, Chromium
	$(CARGO) build $(TESTS)
	@scripts/additions.sh

fuzz: ## every parser of bytes from outside, PANDO_FUZZ_SECONDS each (120)
	@scripts/fuzz.sh

# Soak tests take as long as they take.
soak%: export PANDO_TEST_SECONDS = 1000000
SOAKS := soak-store soak-node soak-serve soak-volume soak-engine
# Also with -j: they share the machine. `make -k soak` goes on after one that fails.
.NOTPARALLEL:

soak: $(SOAKS) ## all five below: hours

soak-store: ## the store on a real S3 service, 10,000 races for a name, and 1,000 kills of pagers in the middle of page faults
	PANDO_ROUNDS=10000 $(CARGO) test --locked -p pando-store --test heads -- races
	GO=$(GO) scripts/s3.sh $(CARGO) test --locked -p pando-store --test chunks -- --include-ignored
	PANDO_ROUNDS=1000 $(CARGO) test --locked -p pando-pager --test served -- any_of
	PANDO_ROUNDS=10 $(CARGO) test --locked -p pando-pager --test served -- forks_moves

soak-node: examples programs ## kills in the middle of forks (100 rounds) and of restores (1,000 and more), twins compared 100 times, ten real programs of many processes, faults of S3
	$(CARGO) build $(TESTS)
	PANDO_ROUNDS=100 $(HOST_TESTS) crash::any
	PANDO_ROUNDS=100 $(HOST_TESTS) twins::every
	PANDO_ROUNDS=40 $(HOST_TESTS) killed_in_between
	PANDO_ROUNDS=125 $(HOST_TESTS) kills::
	PANDO_ROUNDS=1 $(HOST_TESTS) real_trees::
	PANDO_OUTAGE_S=30 GO=$(GO) scripts/s3.sh $(HOST_TESTS) faults

soak-serve: examples programs ## attacks on a server: 1,000 idle streams, a minute of swapped links, 20 rounds of all; slow SDK tests
	$(CARGO) build $(TESTS)
	PANDO_SDK_SLOW=1 scripts/sdk.sh --only new -- -m slow
	PANDO_STREAMS=1000 $(HOST_TESTS) attacks::idle_streams
	PANDO_ROUNDS=90 $(HOST_TESTS) attacks::swapped_links
	for round in $$(seq 20); do $(HOST_TESTS) attacks:: hands:: requests:: || exit 1; done

soak-volume: ## POSIX tests of volumes, 3,000 kills and crashes
	FSX_OPERATIONS=200000 scripts/volume.sh posix
	PANDO_ROUNDS=1 $(CARGO) test --locked -p pando-volume -p pando-sandbox --lib -- recover:: archive::
	PANDO_ROUNDS=1000 $(CARGO) test --locked -p pando-volume --test volumes -- crash
	PANDO_ROUNDS=1000 $(CARGO) test --locked -p pando-volumed --test served -- killed
	PANDO_ROUNDS=1 $(CARGO) test --locked -p pando-volumed --test served -- each_of_its_places
	PANDO_ROUNDS=1000 $(CARGO) test --locked -p pando-volumed --test served -- local_directory

soak-engine: examples programs ## each program forked and compared 100 times, and all of the engine's tests 20 times
	$(CARGO) build $(TESTS)
	PANDO_ROUNDS=100 $(HOST_TESTS) differential::
	for round in $$(seq 20); do $(HOST_TESTS) engine:: differential:: refused:: || exit 1; done

tidy: ## rules of this repository that no compiler checks, in a second
	$(CARGO) test -q --locked -p pando-tidy

tidy-lower: ## lowers the entries of crates/tidy/known.txt to the present sizes
	PANDO_BLESS=1 $(CARGO) test -q --locked -p pando-tidy --test tidy -- sizes_and_phrases

check: ## what the CI runs: format, rules, lints, documentation, tests
	$(CARGO) fmt --all --check
	$(MAKE) tidy
	$(CARGO) clippy --locked --workspace --all-targets --features $(FUZZING) -- -D warnings
	RUSTDOCFLAGS=-Dwarnings $(CARGO) doc --locked --workspace --no-deps --features $(FUZZING)
	$(CARGO) metadata --locked --format-version 1 --manifest-path fuzz/Cargo.toml >/dev/null
	$(MAKE) test

cli-docs: ## docs/cli.md from the help of the commands
	PANDO_BLESS=1 $(CARGO) test -q --locked --workspace --bin pando -- reference::

openapi: ## docs/openapi.json from the routes of the server
	PANDO_BLESS=1 $(CARGO) test -q --locked --workspace --lib -- openapi::tests::the_file

openapi-release: ## says that clients rely on the present docs/openapi.json: breaking changes of it fail from now on
	cp docs/openapi.json docs/openapi.released.json

api-fuzz: ## requests made from docs/openapi.json against a server, 7 minutes; needs root and a network for schemathesis
	$(CARGO) build $(TESTS)
	@scripts/schemathesis.sh

bench: dist examples ## the measured comparison, in minutes: floor, cold starts, starts, forks
	$(OUT)/dist/pando bench start

bench-volume: ## volumes beside ext4 and beside a FUSE filesystem that does nothing else; needs root
	@scripts/volume.sh bench

volume-tools: ## git, npm, pip, cargo, tar, SQLite and PostgreSQL on a volume beside ext4; needs root, npm and a network
	@scripts/volume.sh tools

posix: ## pjdfstest, fsx and the stressors of stress-ng on a volume whose worker is killed all the while; needs root
	@scripts/volume.sh posix

posix-hours: ## the same for hours: 8 million operations of fsx (some 150,000 a minute here), each stressor for a minute, all at once for 15
	@FSX_OPERATIONS=8000000 STRESS_SECONDS=60 scripts/volume.sh posix

kernels: ## boots other kernels in QEMU (6.12 and the newest) and tries pando on them: minutes each; not part of the CI
	@scripts/kernels.sh

clean: ## removes everything that was built
	$(CARGO) clean

.PHONY: help serve setup setup-demo build dist install uninstall examples base programs demo test sdk-test fuzz soak $(SOAKS) tidy tidy-lower check cli-docs openapi openapi-release api-fuzz bench bench-volume volume-tools posix posix-hours kernels clean additions-test
.DEFAULT_GOAL := help
