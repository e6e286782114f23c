//! Runs one target of `weir::fuzzing`, which `FUZZ_TARGET` names, on inputs that libFuzzer chooses by
//! what they reach.

#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use weir::fuzzing::TARGETS;

static TARGET: LazyLock<fn(&[u8])> = LazyLock::new(|| {
    let name = std::env::var("FUZZ_TARGET").unwrap_or_default();
    let found = TARGETS.iter().find(|(target, _)| *target == name);
    found.map_or_else(
        || {
            let names: Vec<_> = TARGETS.iter().map(|(target, _)| *target).collect();
            panic!("FUZZ_TARGET is none of {}", names.join(", "))
        },
        |(_, run)| *run,
    )
});

fuzz_target!(|bytes: &[u8]| (*TARGET)(bytes));
