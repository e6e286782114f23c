use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use super::*;
use crate::upstream::credentials::exec_credential::tests::exec_credential;
use crate::upstream::tls::Pem;

/// A plugin that is a shell script. The shell reads it: a file just written cannot always be
/// executed.
pub(crate) fn script_plugin(dir: &Path, text: &str) -> ExecPlugin {
    let file = dir.join("plugin.sh");
    fs::write(&file, text).unwrap();
    ExecPlugin {
        api_version: ExecApiVersion::V1,
        command: "/bin/sh".into(),
        args: vec![file.to_str().unwrap().to_owned()],
        env: vec![("DIR".to_owned(), dir.to_str().unwrap().to_owned())],
        install_hint: None,
        cluster: None,
    }
}

async fn failure(plugin: &ExecPlugin) -> String {
    plugin.run().await.err().unwrap().to_string()
}

#[tokio::test]
async fn a_plugin_receives_its_exec_info_and_has_no_terminal() {
    let dir = tempfile::tempdir().unwrap();
    let answer = exec_credential(&json!({ "token": "t" }));
    let text = format!(
        "cat >\"$DIR/stdin\"\nprintf %s \"$KUBERNETES_EXEC_INFO\" >\"$DIR/info\"\n\
         printf '%s|' \"$@\" \"$PROFILE\" >\"$DIR/args\"\necho '{answer}'\n"
    );
    let mut plugin = script_plugin(dir.path(), &text);
    plugin
        .args
        .extend(["get-token".to_owned(), "two words".to_owned()]);
    plugin.env.push(("PROFILE".to_owned(), "prod".to_owned()));
    plugin
        .env
        .push(("KUBERNETES_EXEC_INFO".to_owned(), "not this".to_owned()));
    let seen = |name: &str| fs::read_to_string(dir.path().join(name)).unwrap();

    assert_eq!(
        plugin.run().await.unwrap().authorization.unwrap(),
        "Bearer t"
    );
    assert_eq!(seen("args"), "get-token|two words|prod|");
    assert_eq!(seen("stdin"), "");
    let info = |cluster: Value| {
        let mut spec = json!({ "interactive": false });
        if !cluster.is_null() {
            spec["cluster"] = cluster;
        }
        json!({ "apiVersion": ExecApiVersion::V1.as_str(), "kind": "ExecCredential", "spec": spec })
    };
    assert_eq!(
        serde_json::from_str::<Value>(&seen("info")).unwrap(),
        info(Value::Null)
    );

    fs::write(dir.path().join("ca.crt"), "a ca").unwrap();
    plugin.cluster = Some(ClusterInfo {
        server: "https://k".to_owned(),
        tls_server_name: Some("k8s".to_owned()),
        ca: Some(Pem::File(dir.path().join("ca.crt"))),
        proxy_url: None,
        disable_compression: false,
        config: json!({ "audience": "x" }),
    });
    plugin.run().await.unwrap();
    let cluster = json!({
        "server": "https://k",
        "tls-server-name": "k8s",
        "certificate-authority-data": "YSBjYQ==",
        "config": { "audience": "x" },
    });
    assert_eq!(
        serde_json::from_str::<Value>(&seen("info")).unwrap(),
        info(cluster)
    );

    fs::remove_file(dir.path().join("ca.crt")).unwrap();
    let message = failure(&plugin).await;
    assert!(
        message.contains("cannot receive the cluster's CA: "),
        "{message}"
    );
}

#[tokio::test]
async fn the_error_of_a_failed_plugin_has_its_last_stderr_line_and_its_hint() {
    let dir = tempfile::tempdir().unwrap();
    let mut plugin = script_plugin(
        dir.path(),
        "echo secret\necho one >&2\nprintf 'run \\033[1mlogin first\\n\\n' >&2\nexit 3\n",
    );
    plugin.install_hint = Some("ask the platform team\n".to_owned());
    assert_eq!(
        failure(&plugin).await,
        "the credential plugin \"/bin/sh\" failed (exit status: 3); it said: run \\x1b[1mlogin first; \
         its installHint: ask the platform team"
    );
    plugin.command = dir.path().join("missing");
    let message = failure(&plugin).await;
    let expected =
        "is not to be found; install it, or give its full path as command; its installHint: ask";
    assert!(message.contains(expected), "{message}");
    plugin.command = dir.path().to_owned();
    assert!(failure(&plugin).await.contains("cannot be run: "));
}

#[tokio::test]
async fn the_size_of_stdout_is_limited_and_that_of_stderr_is_not() {
    let dir = tempfile::tempdir().unwrap();
    let answer = exec_credential(&json!({ "token": "t" }));
    let text = format!("head -c 3000000 /dev/zero | tr '\\0' x >&2\necho '{answer}'\n");
    script_plugin(dir.path(), &text).run().await.unwrap();
    let endless = script_plugin(dir.path(), "exec cat /dev/zero\n");
    assert!(
        failure(&endless)
            .await
            .ends_with("printed more than 1024 KiB")
    );
}

// The paused clock advances when all tasks wait, and so reaches the time limit.
#[tokio::test(start_paused = true)]
async fn a_plugin_that_does_not_end_times_out() {
    let dir = tempfile::tempdir().unwrap();
    let plugin = script_plugin(dir.path(), "exec sleep 600\n");
    let message = failure(&plugin).await;
    assert!(message.ends_with("did not end within 60s"), "{message}");
}

#[test]
fn the_log_of_stderr_is_bounded() {
    let mut said = StderrLog::default();
    let mut logged = Vec::new();
    said.push(b"one\r\ntw", |line| logged.push(line.to_owned()));
    said.push(b"o\n\nthree", |line| logged.push(line.to_owned()));
    assert_eq!(logged, ["one", "two"]);
    assert_eq!(said.tail(), "three");
    for _ in 0..1000 {
        said.push(&[b'x'; 5000], |_| {});
        said.push(b"\n", |line| logged.push(line.to_owned()));
    }
    assert!(logged.iter().all(|line| line.len() <= MAX_LINE));
    assert!(logged.iter().map(String::len).sum::<usize>() <= MAX_LOGGED);
    assert_eq!(said.tail().len(), MAX_LINE);
}
