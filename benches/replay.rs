//! Time and memory of `weir replay` for a made audit log: 10 million events of 10,000 users. And of
//! `weir explain --batch` for a hundredth as many requests.
//!
//! The log is written into the standard input of the program while it reads, so it takes no disk.
//! Writing takes a part of one core. With two configurations (`--compare`), the simulation runs
//! twice. Nothing is asserted.
//!
//! Usage: cargo bench --bench replay [-- EVENTS, default 10000000]

use std::env;
use std::error::Error;
use std::fmt::Write as _;
use std::io::{BufWriter, Write};
use std::process::{ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

use fastrand::Rng;
use jiff::Timestamp;

const EVENTS: u64 = 10_000_000;
const USERS: u32 = 10_000;

/// Events a second of the log: a busy cluster.
const EVENTS_PER_SECOND: u64 = 2_000;

fn main() -> Result<(), Box<dyn Error>> {
    let events = env::args().find_map(|argument| argument.parse().ok());
    let events: u64 = events.unwrap_or(EVENTS);
    println!("| run | events | seconds | events/s | CPU s | peak memory MiB | input MiB |");
    println!("|---|---|---|---|---|---|---|");
    for (run, flags) in [
        ("fairness", &[][..]),
        ("max-in-flight", &["--enable-priority-and-fairness=false"]),
        (
            "client-go, 20 cores",
            &["--clients=client-go", "--capacity=20"],
        ),
        (
            "closed-client-go, 20 cores",
            &["--clients=closed-client-go", "--capacity=20"],
        ),
    ] {
        let arguments = [&["replay", "-", "-o", "json"], flags].concat();
        measure(run, &arguments, events, write_log)?;
    }
    let lines = events / 100;
    measure(
        "explain --batch",
        &["explain", "--batch"],
        lines,
        write_requests,
    )
}

#[expect(clippy::disallowed_methods, reason = "it measures")]
fn measure(
    run: &str,
    arguments: &[&str],
    events: u64,
    write: impl Fn(ChildStdin, u64) -> Result<u64, Box<dyn Error>>,
) -> Result<(), Box<dyn Error>> {
    let started = Instant::now();
    let mut child = Command::new(env!("CARGO_BIN_EXE_weir"))
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()?;
    let id = child.id();
    let input = child.stdin.take().ok_or("no pipe")?;
    let bytes = write(input, events)?;
    let (mut peak, mut cpu) = (0, Duration::ZERO);
    // The values of the last moment before its end.
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        peak = peak_memory_kib(id).unwrap_or(peak);
        cpu = cpu_time(id).unwrap_or(cpu);
        std::thread::sleep(Duration::from_millis(2));
    };
    if !status.success() {
        return Err(format!("weir {}: {status}", arguments.join(" ")).into());
    }
    let seconds = started.elapsed().as_secs_f64();
    let rate = f64::from(u32::try_from(events)?) / seconds;
    println!(
        "| {run} | {events} | {seconds:.1} | {rate:.0} | {:.1} | {} | {} |",
        cpu.as_secs_f64(),
        peak / 1024,
        bytes >> 20
    );
    Ok(())
}

/// Writes requests to explain.
fn write_requests(input: ChildStdin, requests: u64) -> Result<u64, Box<dyn Error>> {
    let mut output = BufWriter::with_capacity(1 << 20, input);
    let mut bytes = 0;
    for n in 0..requests {
        let line = format!(
            r#"{{"method":"GET","url":"/api/v1/namespaces/ns-{}/pods?limit=500","user":"system:serviceaccount:ns-{}:controller-{}"}}"#,
            n % 200,
            n % 200,
            n % u64::from(USERS)
        );
        writeln!(output, "{line}")?;
        bytes += u64::try_from(line.len())? + 1;
    }
    output.flush()?;
    Ok(bytes)
}

/// Writes events of service times around 20 ms, in the order in which the requests end.
fn write_log(input: ChildStdin, events: u64) -> Result<u64, Box<dyn Error>> {
    let mut output = BufWriter::with_capacity(1 << 20, input);
    let mut random = Rng::with_seed(1);
    let (mut line, mut bytes) = (String::new(), 0);
    let begin: i64 = 1_795_460_688_000_000;
    for n in 0..events {
        let ended = begin + i64::try_from(n * 1_000_000 / EVENTS_PER_SECOND)?;
        let took = if random.u32(..1000) == 0 {
            random.i64(0..5_000_000)
        } else {
            random.i64(0..40_000)
        };
        line.clear();
        write_event(&mut line, &mut random, n, ended - took, ended)?;
        output.write_all(line.as_bytes())?;
        bytes += u64::try_from(line.len())?;
    }
    output.flush()?;
    Ok(bytes)
}

fn write_event(
    line: &mut String,
    random: &mut Rng,
    n: u64,
    received: i64,
    ended: i64,
) -> Result<(), Box<dyn Error>> {
    // A few users send most.
    let user = random.u32(..USERS).min(random.u32(..USERS));
    let namespace = user % 200;
    let (verb, path) = match random.u32(..10) {
        0 => (
            "list",
            format!("/api/v1/namespaces/ns-{namespace}/pods?limit=500\\u0026resourceVersion=0"),
        ),
        1 => (
            "create",
            format!("/api/v1/namespaces/ns-{namespace}/events"),
        ),
        2 => (
            "patch",
            format!(
                "/api/v1/namespaces/ns-{namespace}/pods/pod-{}/status",
                n % 50_000
            ),
        ),
        3 => (
            "update",
            format!("/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/node-{user}"),
        ),
        _ => (
            "get",
            format!(
                "/api/v1/namespaces/ns-{namespace}/configmaps/config-{}?timeout=10s",
                n % 9973
            ),
        ),
    };
    let (received, ended) = (
        Timestamp::from_microsecond(received)?,
        Timestamp::from_microsecond(ended)?,
    );
    writeln!(
        line,
        r#"{{"kind":"Event","apiVersion":"audit.k8s.io/v1","level":"Metadata","auditID":"{n:08x}-32a0-4b2c-bb97-7581e525367b","stage":"ResponseComplete","requestURI":"{path}","verb":"{verb}","user":{{"username":"system:serviceaccount:ns-{namespace}:controller-{user}","uid":"f0eaa49a-5f50-4b1a-9e26-89d640323729","groups":["system:serviceaccounts","system:serviceaccounts:ns-{namespace}","system:authenticated"],"extra":{{"authentication.kubernetes.io/pod-name":["controller-{user}"]}}}},"sourceIPs":["10.0.{}.{}"],"userAgent":"controller/v1.36.0 (linux/amd64) kubernetes/$Format","objectRef":{{"resource":"configmaps","namespace":"ns-{namespace}","name":"config","apiVersion":"v1"}},"responseStatus":{{"metadata":{{}},"code":200}},"requestReceivedTimestamp":"{received:.6}","stageTimestamp":"{ended:.6}","annotations":{{"authorization.k8s.io/decision":"allow","authorization.k8s.io/reason":"RBAC: allowed by ClusterRoleBinding \"controllers\" of ClusterRole \"controller\" to ServiceAccount \"controller-{user}/ns-{namespace}\""}}}}"#,
        user / 250,
        user % 250
    )?;
    Ok(())
}

fn peak_memory_kib(id: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{id}/status")).ok()?;
    let line = status.lines().find(|line| line.starts_with("VmHWM:"))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

fn cpu_time(id: u32) -> Option<Duration> {
    let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_whitespace().skip(11);
    let ticks: u64 = fields.next()?.parse::<u64>().ok()? + fields.next()?.parse::<u64>().ok()?;
    Some(Duration::from_millis(ticks * 10))
}
