//! No container engine runs in CI: the Dockerfile's build commands are those that CI executes, word for word.

use std::fs;
use std::path::Path;

#[test]
fn what_the_dockerfile_builds_is_what_ci_builds() {
    let read =
        |file: &str| fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(file)).unwrap();
    let (dockerfile, ci) = (read("Dockerfile"), read(".ci/run"));
    let builds: Vec<_> = dockerfile
        .lines()
        .filter_map(|line| line.find("deploy/build.sh ").map(|at| &line[at..]))
        .collect();
    assert!(!builds.is_empty(), "the Dockerfile builds nothing");
    for build in builds {
        let command = build.trim_end_matches(['\\', '&', ' ']);
        let run = ci
            .lines()
            .any(|line| line.starts_with("step ") && line.ends_with(command));
        assert!(run, "CI does not run: {command}");
        assert!(
            command.contains("--no-default-features"),
            "the image has no playground: {command}"
        );
    }
}
