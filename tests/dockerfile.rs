//! Consistency of the repository's files. No container engine runs in CI: the build commands of the
//! Dockerfile must equal those that CI executes, and the files that they read must be in the build
//! context.

#![expect(
    clippy::unwrap_used,
    reason = "what does not come as it should fails the test"
)]

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

fn read_file(file: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(file)).unwrap()
}

/// The paths in the checkout that `text` mentions outside comments, without build output.
fn mentioned_paths(text: &str) -> Vec<&str> {
    let checkout = Path::new(env!("CARGO_MANIFEST_DIR"));
    text.lines()
        .filter(|line| !line.trim_start().starts_with('#'))
        .flat_map(|line| line.split(|c: char| !c.is_ascii_alphanumeric() && !"/._-".contains(c)))
        .filter(|word| word.contains(['/', '.']) && !word.starts_with(['/', '.', '-']))
        .filter(|word| !word.starts_with("target/") && checkout.join(word).exists())
        .collect()
}

/// Whether a line of `.dockerignore` excludes `path`: by a name at the top, or by `*` and a suffix
/// there.
fn excludes(line: &str, path: &str) -> bool {
    assert!(
        !line.starts_with('!') && !line.contains('/') && line.matches('*').count() <= 1,
        "this test cannot read: {line}"
    );
    let top = path.split('/').next().unwrap_or_default();
    match line.split_once('*') {
        Some((begin, end)) => top.starts_with(begin) && top.ends_with(end),
        None => top == line,
    }
}

#[test]
fn files_that_the_dockerfile_needs_are_in_its_context() {
    let (dockerfile, ignored) = (read_file("Dockerfile"), read_file(".dockerignore"));
    let manifest = read_file("Cargo.toml");
    let scripts: Vec<String> = mentioned_paths(&dockerfile)
        .into_iter()
        .map(read_file)
        .collect();
    let benches = manifest.split("[[").filter_map(|section| {
        let name = section.strip_prefix("bench]]")?.split('"').nth(1)?;
        Some(format!("benches/{name}.rs"))
    });
    let needed: Vec<String> = [&dockerfile, &manifest]
        .into_iter()
        .chain(&scripts)
        .flat_map(|text| mentioned_paths(text))
        .chain(["Cargo.toml", "Cargo.lock", "src/main.rs"])
        .map(str::to_owned)
        .chain(benches)
        .collect();
    for file in [
        "deploy/build.sh",
        "benches/origin.sh",
        "examples/controller/main.rs",
        "tests/vectors/main.rs",
        "benches/tokens.rs",
    ] {
        assert!(needed.iter().any(|path| path == file), "{file} is needed");
    }
    for line in ignored.lines().filter(|line| !line.starts_with('#')) {
        for path in &needed {
            assert!(!excludes(line, path), "{line} excludes {path}");
        }
    }
}

#[test]
fn the_dockerfile_s_build_commands_are_run_by_ci() {
    let (dockerfile, ci) = (read_file("Dockerfile"), read_file(".ci/run"));
    let builds: Vec<_> = dockerfile
        .lines()
        .filter_map(|line| line.find("deploy/build.sh ").map(|at| &line[at..]))
        .collect();
    assert!(!builds.is_empty(), "the Dockerfile builds nothing");
    for build in builds {
        let command = build.trim_end_matches(['\\', '&', ' ']);
        let run = ci
            .lines()
            .any(|line| !line.trim_start().starts_with('#') && line.ends_with(command));
        assert!(run, "the nightly CI does not run: {command}");
        assert!(
            command.contains("--no-default-features"),
            "the image has no playground: {command}"
        );
    }
}

/// `rust-toolchain.toml` names a patch release; the manifest and the image name its minor release.
#[test]
fn one_rust_release_is_named_everywhere() {
    let named = |file: &str, begin: &str, end: &str| {
        let text = read_file(file);
        let line = text.lines().find_map(|line| line.strip_prefix(begin));
        let (version, _) = line.unwrap().split_once(end).unwrap();
        version.to_owned()
    };
    let minor = named("Cargo.toml", "rust-version = \"", "\"");
    assert_eq!(named("Dockerfile", "FROM rust:", "-"), minor);
    let channel = named("rust-toolchain.toml", "channel = \"", "\"");
    assert!(channel.starts_with(&format!("{minor}.")), "{channel}");
}

/// The versions that follow `name` in these files.
fn versions_after(name: &str, files: &[&str]) -> BTreeSet<String> {
    let texts: Vec<String> = files.iter().map(|file| read_file(file)).collect();
    let versions = texts.iter().flat_map(|text| text.split(name).skip(1));
    versions
        .map(|rest| {
            let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.');
            rest.get(..end.unwrap_or(rest.len())).unwrap().to_owned()
        })
        .collect()
}

#[test]
fn one_version_of_each_release_tool_is_named_everywhere() {
    let files = [
        ".ci/run",
        ".github/workflows/release.yaml",
        "CONTRIBUTING.md",
        "benches/instructions.sh",
        "deploy/release.sh",
    ];
    let cargo_deb = versions_after("cargo-deb@", &files);
    assert_eq!(cargo_deb.len(), 1, "cargo-deb: {cargo_deb:?}");
    let mut gungraun = versions_after("gungraun-runner@", &files);
    gungraun.extend(versions_after("gungraun = \"=", &["Cargo.toml"]));
    assert_eq!(gungraun.len(), 1, "gungraun: {gungraun:?}");
}
