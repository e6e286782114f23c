# What one does here. `just` lists it; `cargo install just` installs it. No recipe installs anything, and none needs root but
# `just ci`.

set shell := ["bash", "-euo", "pipefail", "-c"]

# List the recipes.
default:
    @just --list --unsorted

# Every test; or those that ARGUMENTS of `cargo test` choose, such as a part of a name.
test *ARGUMENTS:
    @command -v cc >/dev/null || { echo 'a C compiler is missing (Debian: build-essential)' >&2; exit 1; }
    cargo test --locked {{ ARGUMENTS }}

# Format, clippy and shellcheck, as CI runs them.
lint:
    cargo fmt --check
    cargo clippy --all-targets --locked -- -D warnings
    cargo clippy --lib --bins --locked --no-default-features -- -D warnings
    shellcheck --external-sources .ci/run benches/*.sh deploy/*.sh deploy/release/*.sh deploy/release/debian/* examples/*.sh fuzz/run tests/tools/*.sh

# weir in front of a small API server in memory; it prints what to paste.
run *FLAGS='--dir target/playground':
    cargo run --locked --no-default-features --features playground -- playground {{ FLAGS }}

# Inputs chosen by coverage for one of the targets in src/fuzzing.rs, or for all in turn, for so many seconds each.
fuzz TARGET='all' SECONDS='60':
    fuzz/run {{ TARGET }} {{ SECONDS }}

# All orders of the steps of a few threads, for the code that crates/base/src/sync names (loom).
models *FILTER='loom_tests':
    RUSTFLAGS='--cfg weir_loom' cargo test --locked --target-dir target/loom --lib -p weir-base -p weir-limits -p weir {{ FILTER }}

# One benchmark of benches/ by the profile `release`, or one case of it.
bench NAME='admission' *FILTER:
    cargo bench --locked --bench {{ NAME }} -- {{ FILTER }}

# weir beside nginx and HAProxy, as it is shipped but for the profile-guided part.
peers *ARGUMENTS:
    cargo build --profile dist --locked
    cargo bench --profile dist --locked --bench floor --no-run
    benches/peers.sh {{ ARGUMENTS }}

# weir beside an earlier build of it, the program BEFORE, at the same time.
builds *ARGUMENTS:
    cargo build --profile dist --locked
    benches/builds.sh {{ ARGUMENTS }}

# weir beside nginx, HAProxy and Envoy under sparse load, with idle connections, handshakes and fan-out.
sparse *ARGUMENTS:
    cargo build --profile dist --locked
    benches/peers/run.py {{ ARGUMENTS }}

# One script of tests/tools/: a real tool against the real program.
script NAME='curl':
    cargo build --release --locked
    tests/tools/{{ NAME }}.sh

# The crate's documentation, in target/doc/weir/index.html.
docs:
    cargo doc --locked --no-deps --lib

# Lines of code of each crate, without tests and comments; of a COMMIT, if one is given.
lines *COMMIT:
    tests/lines.py {{ COMMIT }}

# The documentation's generated tables, made anew.
tables:
    WEIR_WRITE_DOCS=1 cargo test --locked --test docs --test manifests -- --test-threads=1

# The shipped program (target/guided/weir), with its completions and manual pages (target/guided/share).
dist *FLAGS='--no-default-features --features otlp,shared-limits,tools':
    deploy/build.sh {{ FLAGS }}

# What a release consists of, in target/release-files: tarballs, .deb, images, SBOM, checksums (deploy/release.sh).
release *FLAGS:
    deploy/release.sh {{ FLAGS }}

# Instruction counts of fixed work, beside those of the last release (valgrind).
instructions *FLAGS:
    benches/instructions.sh {{ FLAGS }}

# Everything CI runs. As root, on a Debian 12 of its own: it installs packages.
ci:
    .ci/run

# Which of the tools that CI needs are missing here, and the Debian packages that have them.
needs:
    #!/usr/bin/env bash
    set -euo pipefail
    PATH=$PATH:/usr/sbin:/sbin
    missing=()
    while read -r tool package; do
        [[ $tool == /* && -e $tool ]] || command -v "$tool" >/dev/null || missing+=("$package")
    done < <(grep -v '^#' .ci/packages)
    if ((${#missing[@]} == 0)); then
        echo 'nothing is missing'
    else
        printf 'missing: %s\n' "${missing[*]}"
        printf 'sudo apt install --no-install-recommends %s\n' "${missing[*]}"
    fi
