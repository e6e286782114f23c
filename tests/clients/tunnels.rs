//! exec, attach and port-forward: WebSocket from end to end.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Status;
use kube::api::{AttachParams, AttachedProcess};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::playground::{ALICE, Playground, within};

/// Far more than the buffers on the path hold, so that data must flow both ways at once.
const LARGE_LENGTH: usize = 8 << 20;

/// Bytes that reveal lost, repeated or reordered parts.
fn pattern(length: usize) -> Vec<u8> {
    let counted = (0_u64..).flat_map(|n| n.to_le_bytes());
    counted.take(length).collect()
}

/// Sends `input` and ends it. Returns the output and the status.
async fn run_echo(mut process: AttachedProcess, input: Vec<u8>) -> (Vec<u8>, Status) {
    let (mut stdin, mut stdout) = (process.stdin().unwrap(), process.stdout().unwrap());
    let status = process.take_status().unwrap();
    let mut output = Vec::with_capacity(input.len());
    let write = async {
        stdin.write_all(&input).await.unwrap();
        stdin.shutdown().await.unwrap();
    };
    let (_, read, status) = within("the echo and its end", async {
        tokio::join!(write, stdout.read_to_end(&mut output), status)
    })
    .await;
    read.unwrap();
    within("the end", process.join()).await.unwrap();
    (output, status.expect("a status"))
}

#[tokio::test(flavor = "multi_thread")]
async fn exec_carries_input_output_and_the_exit_status() {
    let playground = Playground::start(&[]).await;
    for context in ALICE {
        let (pods, name) = playground.pods(context).await;
        let params = AttachParams::default().stdin(true).stderr(false);
        let process = within("exec", pods.exec(&name, ["cat"], &params))
            .await
            .unwrap();
        let (output, status) = run_echo(process, b"hello\n".to_vec()).await;
        assert_eq!(output, b"hello\n", "as {context}");
        assert_eq!(status.status.as_deref(), Some("Success"), "as {context}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn exec_carries_megabytes_both_ways_at_once() {
    let playground = Playground::start(&[]).await;
    let (pods, name) = playground.pods("alice").await;
    let params = AttachParams::default().stdin(true).stderr(false);
    let process = within("exec", pods.exec(&name, ["cat"], &params))
        .await
        .unwrap();
    let (output, _) = run_echo(process, pattern(LARGE_LENGTH)).await;
    assert!(
        output == pattern(LARGE_LENGTH),
        "{} bytes came back",
        output.len()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn exec_without_input_prints_and_succeeds() {
    let playground = Playground::start(&[]).await;
    for context in ALICE {
        let (pods, name) = playground.pods(context).await;
        let params = AttachParams::default().stderr(false);
        let mut process = within("exec", pods.exec(&name, ["ls", "-l"], &params))
            .await
            .unwrap();
        let (mut stdout, status) = (process.stdout().unwrap(), process.take_status().unwrap());
        let mut output = String::new();
        within("the output", stdout.read_to_string(&mut output))
            .await
            .unwrap();
        assert!(output.ends_with("ls -l\n"), "{output:?}, as {context}");
        let status = within("the status", status).await.unwrap();
        assert_eq!(status.status.as_deref(), Some("Success"), "as {context}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn attach_carries_input_and_output() {
    let playground = Playground::start(&[]).await;
    for context in ALICE {
        let (pods, name) = playground.pods(context).await;
        let params = AttachParams::default().stdin(true).stderr(false);
        let process = within("attach", pods.attach(&name, &params)).await.unwrap();
        let (output, status) = run_echo(process, b"over here\n".to_vec()).await;
        assert_eq!(output, b"over here\n", "as {context}");
        assert_eq!(status.status.as_deref(), Some("Success"), "as {context}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn port_forward_keeps_two_ports_separate() {
    let playground = Playground::start(&[]).await;
    for context in ALICE {
        let (pods, name) = playground.pods(context).await;
        let mut forwarder = within("port-forward", pods.portforward(&name, &[80, 8080]))
            .await
            .unwrap();
        let (mut web, mut other) = (
            forwarder.take_stream(80).unwrap(),
            forwarder.take_stream(8080).unwrap(),
        );
        within("both echoes", async {
            let (ping, pong) = (pattern(300_000), b"pong".to_vec());
            let (mut first, mut second) = (vec![0; ping.len()], vec![0; pong.len()]);
            web.write_all(&ping).await.unwrap();
            other.write_all(&pong).await.unwrap();
            other.read_exact(&mut second).await.unwrap();
            web.read_exact(&mut first).await.unwrap();
            assert!(first == ping && second == pong, "as {context}");
        })
        .await;
        drop((web, other));
        within("the end", forwarder.join()).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_exec_that_the_server_rejects_fails_with_the_server_s_error() {
    let playground = Playground::start(&[]).await;
    for context in ALICE {
        let (pods, _) = playground.pods(context).await;
        let params = AttachParams::default();
        let rejected = within("a refusal", pods.exec("nowhere", ["cat"], &params)).await;
        let error = rejected.err().expect("there is no such pod");
        assert!(error.to_string().contains("404"), "{error}, as {context}");
    }
}
