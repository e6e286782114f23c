//! Reads a file of golden cases.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use flate2::read::GzDecoder;
use serde_json::Value;

/// All cases of `name`, from `NAME.json`, `NAME.json.gz` or both. Panics if both are missing, or if
/// there is no case.
pub(crate) fn cases(name: &str) -> Vec<Value> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/vectors");
    let mut cases = Vec::new();
    if let Ok(mut plain) = File::open(here.join(format!("{name}.json"))) {
        cases.extend(parse(name, &mut plain));
    }
    if let Ok(packed) = File::open(here.join(format!("{name}.json.gz"))) {
        cases.extend(parse(name, &mut GzDecoder::new(packed)));
    }
    assert!(
        !cases.is_empty(),
        "no cases of {name} in {}",
        here.display()
    );
    cases
}

fn parse(name: &str, from: &mut dyn Read) -> Vec<Value> {
    let mut text = String::new();
    from.read_to_string(&mut text)
        .unwrap_or_else(|e| panic!("{name}: {e}"));
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{name}: {e}"))
}
