#!/bin/sh
# Fuzzes every parser of bytes from outside (fuzz/src/main.rs lists them), one after the other: scripts/fuzz.sh [TARGET...]
#
#   PANDO_FUZZ_SECONDS   for each target (120)
#
# Needs a C++ compiler, which libFuzzer (crate libfuzzer-sys) is built with, and zstd for the seeds; installs them if they are missing. rustc
# instruments the code, on the stable toolchain too. What is found lies in target/fuzz/findings; inputs that reach more code are kept in target/fuzz/corpus, so that each run goes on
# where the last one ended. Runs at the lowest priority.
set -eu
cd "$(dirname "$0")/.."
missing=
command -v c++ >/dev/null || missing="$missing g++"
command -v zstd >/dev/null || missing="$missing zstd"
[ -z "$missing" ] || { apt-get update && apt-get install -y --no-install-recommends $missing; }

seconds=${PANDO_FUZZ_SECONDS:-120}
machine=$(rustc -vV | sed -n 's/^host: //p')
out=$PWD/target/fuzz
# Only code for the target is instrumented, not what runs while building: hence --target.
RUSTFLAGS="-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
-Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares" \
CARGO_INCREMENTAL=0 CARGO_TARGET_DIR=$out ${CARGO:-cargo} build --locked --release --target "$machine" --manifest-path fuzz/Cargo.toml
program=$out/$machine/release/pando-fuzz

python3 fuzz/seeds.py "$out/seeds"
mkdir -p "$out/findings"
[ $# -gt 0 ] || set -- $(sed -n 's/^    ("\([a-z_]*\)", .*/\1/p' fuzz/src/main.rs)
failed=
for target; do
    echo "== $target, $seconds s"
    mkdir -p "$out/corpus/$target" "$out/seeds/$target" "$out/findings/$target"
    PANDO_FUZZ_TARGET=$target nice -n 19 "$program" -max_total_time="$seconds" -max_len=65536 -timeout=10 -rss_limit_mb=1024 \
        -print_final_stats=1 -artifact_prefix="$out/findings/$target/" "$out/corpus/$target" "$out/seeds/$target" \
        >"$out/$target.log" 2>&1 || failed="$failed $target"
    sed -n 's/^stat::number_of_executed_units: */  runs: /p; s/^stat::peak_rss_mb: */  peak MiB: /p' "$out/$target.log"
done
rm -rf /dev/shm/pando-fuzz-*
[ -z "$failed" ] || { echo "found something:$failed; logs and inputs are in $out" >&2; exit 1; }
