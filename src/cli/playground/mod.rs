//! `weir playground`: weir in front of a small API server, with generated certificates.
//!
//! As in a real installation, weir and the API server share only an address and files.

pub mod fairness;
mod faults;

use std::fs::DirBuilder;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::num::{NonZeroU32, NonZeroUsize};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use std::{fs, io, thread};

use clap::Args;
use tokio::sync::oneshot;

use crate::app::App;
use crate::cli::flags::{ProxyArgs, ServeArgs, UpstreamArgs};
use crate::cli::playground::fairness::ServerFairness;
use crate::cli::playground::faults::{FaultSchedule, parse_schedule};
use crate::cli::process::exit::{CommandError, exit_code};
use crate::cli::process::logging::Logging;
use crate::cli::process::resolve::resolve_and_log;
use crate::cli::process::{logging, signals};
use crate::flag_values::{parse_bytes, parse_duration};
use crate::server::acceptor;
use weir_playground::{
    CapacityChange, Certificates, Fairness, ISSUER, PlaygroundServer, PlaygroundSettings,
    kubeconfig,
};

/// The mode of a folder that only its owner can use.
const OWNER_ONLY: u32 = 0o700;

/// `weir playground`.
#[derive(Args, Clone, Debug)]
pub(crate) struct PlaygroundArgs {
    /// The API server.
    #[command(flatten)]
    pub(crate) server: ServerArgs,
    /// weir in front of it.
    #[command(flatten)]
    pub(crate) proxy: ProxyArgs,
}

/// The API server of the playground.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Playground")]
pub(crate) struct ServerArgs {
    /// Where kubeconfig, certificates, tokens and addresses are written; a fresh temporary folder if not given.
    /// Certificates and tokens that are there already are used again.
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,
    /// Run the API server alone, on --bind-address and --secure-port, with no weir in front.
    #[arg(long)]
    pub(crate) apiserver_only: bool,
    /// Nodes to begin with.
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub(crate) nodes: usize,
    /// Pods to begin with.
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub(crate) pods: usize,
    /// How many requests the API server serves at full speed; more of them share it. Unlimited if not given.
    #[arg(long, value_name = "N")]
    pub(crate) capacity: Option<NonZeroUsize>,
    /// Changes of --capacity at times after the start, as 30s=5,60s=10,90s=0,92s=10. 0 is a pause: nothing is served.
    #[arg(long, value_name = "TIME=N", value_delimiter = ',', value_parser = parse_capacity_change)]
    pub(crate) capacity_changes: Vec<CapacityChange>,
    /// Faults of the API server at times after the start, as 30s=hang,40s=none, to rehearse them: 429, 500, ca-changed,
    /// certificate-expired, garbage, hang, hang-after-head, no-streams, not-ready, refuse, reset, shutdown, slow-etcd; none ends
    /// one. The same word in the file `fault` of --dir is in force at once. docs/failures.md says what each of them does.
    #[arg(long, value_name = "TIME=KIND,...", value_parser = parse_schedule)]
    pub(crate) fault: Option<FaultSchedule>,
    /// How long the API server takes to serve a request at full speed.
    #[arg(long, value_name = "DURATION", default_value = "0s", value_parser = parse_duration)]
    pub(crate) service_time: Duration,
    /// The API server's own limit of requests in flight, for comparisons; refuses as kube-apiserver does.
    #[arg(long, value_name = "N")]
    pub(crate) max_in_flight: Option<usize>,
    /// Seats of the API server's own priority and fairness, for comparisons; queues and refuses as kube-apiserver does, by the
    /// flow schemas and priority levels that it stores. kube-apiserver has 600: its --max-requests-inflight and
    /// --max-mutating-requests-inflight together. None if not given.
    #[arg(long, value_name = "SEATS", conflicts_with = "max_in_flight")]
    pub(crate) apiserver_concurrency_limit: Option<NonZeroU32>,
    /// CPU time that the API server burns for each answer.
    #[arg(long, value_name = "DURATION", default_value = "0s", value_parser = parse_duration)]
    pub(crate) service_cpu: Duration,
    /// CPU time that the API server burns for each refusal of its own.
    #[arg(long, value_name = "DURATION", default_value = "0s", value_parser = parse_duration)]
    pub(crate) refusal_cpu: Duration,
    /// Bytes of lists that the API server can hold while it serves them, as 64Mi; beyond it ends, as a process that has no more
    /// memory. Unlimited if not given.
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    pub(crate) list_memory_limit: Option<u64>,
}

fn parse_capacity_change(text: &str) -> Result<CapacityChange, String> {
    let parse = || {
        let (after, capacity) = text.split_once('=')?;
        Some(CapacityChange {
            after: parse_duration(after).ok()?,
            capacity: capacity.parse().ok()?,
        })
    };
    parse().ok_or_else(|| "give a time and a number, as 30s=5".to_owned())
}

/// Runs the command.
pub(super) fn run(args: PlaygroundArgs) -> ExitCode {
    let format = args.proxy.operation.logging_format;
    let logging = match logging::start(&args.proxy.operation) {
        Ok(logging) => logging,
        Err(why) => return why.report(format),
    };
    let PlaygroundArgs { server, mut proxy } = args;
    // Loopback by default: every process that reads the folder has its tokens.
    let address = *proxy
        .serving
        .bind_address
        .get_or_insert(IpAddr::V4(Ipv4Addr::LOCALHOST));
    let address = SocketAddr::new(address, proxy.serving.secure_port);
    let result = prepare(&server).and_then(|prepared| {
        if server.apiserver_only {
            run_api_server_only(prepared, address)
        } else {
            run_with_weir(prepared, proxy, &logging)
        }
    });
    drop(logging); // prints all log lines before the error
    result.unwrap_or_else(|why| why.report(format))
}

/// The folder with its files, and the API server, which does not serve yet.
struct PreparedPlayground {
    folder: PathBuf,
    certificates: Certificates,
    server: PlaygroundServer,
    faults: FaultSchedule,
    /// CPU time of a response and of a rejection.
    cpu_times: [Duration; 2],
}

fn prepare(args: &ServerArgs) -> Result<PreparedPlayground, CommandError> {
    let folder = match &args.dir {
        Some(folder) => folder.clone(),
        None => std::env::temp_dir().join(format!("weir-playground-{:08x}", fastrand::u32(..))),
    };
    let cannot_use =
        |why: io::Error| CommandError::Startup(format!("cannot use {}: {why}", folder.display()));
    match &args.dir {
        Some(folder) => fs::create_dir_all(folder),
        // The parent is writable for all users: a folder that exists already may belong to another
        // one.
        None => DirBuilder::new().mode(OWNER_ONLY).create(&folder),
    }
    .map_err(cannot_use)?;
    for stale in ["ready", "address", "admin-address", faults::FAULT_FILE] {
        match fs::remove_file(folder.join(stale)) {
            Err(why) if why.kind() != io::ErrorKind::NotFound => return Err(cannot_use(why)),
            _ => {}
        }
    }
    let certificates = match Certificates::read_from(&folder) {
        Some(certificates) => certificates,
        None => {
            let generated = Certificates::generate()
                .map_err(|why| CommandError::startup_error("cannot make certificates")(&why))?;
            generated.write_to(&folder).map_err(cannot_use)?;
            generated
        }
    };
    let settings = PlaygroundSettings {
        nodes: args.nodes,
        pods: args.pods,
        capacity: args.capacity,
        capacity_changes: args.capacity_changes.clone(),
        service_time: args.service_time,
        max_in_flight: args.max_in_flight,
        service_cpu: args.service_cpu,
        rejection_cpu: args.refusal_cpu,
        list_memory_limit: args.list_memory_limit,
        ..PlaygroundSettings::default()
    };
    let seats = args.apiserver_concurrency_limit;
    let fairness: Arc<dyn Fairness> = Arc::new(ServerFairness::new(seats));
    let server = PlaygroundServer::with_fairness(settings, &certificates, Some(fairness))
        .map_err(|why| CommandError::startup_error("cannot make the API server")(&why))?;
    Ok(PreparedPlayground {
        folder,
        certificates,
        server,
        faults: args.fault.clone().unwrap_or_default(),
        cpu_times: [args.service_cpu, args.refusal_cpu],
    })
}

impl PreparedPlayground {
    /// Prints the addresses, and writes them to files for programs. `ready` is written last.
    fn announce(&self, address: SocketAddr, admin: Option<SocketAddr>) -> io::Result<()> {
        let Self {
            folder,
            certificates,
            server: _,
            faults: _,
            cpu_times: [response, rejection],
        } = self;
        let address = local_address(address);
        let admin = admin.map(local_address);
        let url = format!("https://{address}");
        kubeconfig::write(&folder.join("kubeconfig"), &url, certificates)?;
        fs::write(folder.join("address"), address.to_string())?;
        if let Some(admin) = admin {
            fs::write(folder.join("admin-address"), admin.to_string())?;
        }
        // Not the admin's token: system:masters is never rejected.
        let alice = certificates.users.iter().find(|user| user.name == "alice");
        let token = alice.map_or("", |alice| alice.token.as_str());
        let folder_name = folder.display();
        if !(response.is_zero() && rejection.is_zero()) {
            println!(
                "The API server works {response:?} of CPU for an answer, and {rejection:?} for a refusal of its own."
            );
        }
        println!("The API server is at {url}; everything about it is in {folder_name}. Try:\n");
        println!("  kubectl --kubeconfig {folder_name}/kubeconfig get nodes");
        println!(
            "  kubectl --kubeconfig {folder_name}/kubeconfig --context alice get pods -n default"
        );
        println!(
            "  curl --cacert {folder_name}/ca.crt -H 'Authorization: Bearer {token}' {url}/api/v1/nodes"
        );
        println!("  wrk -t 2 -c 700 -d 10s -H 'Authorization: Bearer {token}' {url}/api/v1/nodes");
        if let Some(admin) = admin {
            println!("  curl http://{admin}/metrics");
        }
        println!();
        fs::write(folder.join("ready"), "")
    }

    /// Runs the API server, with its faults, until `stop` is ready.
    async fn serve(&self, listener: tokio::net::TcpListener, stop: impl Future<Output = ()>) {
        tokio::select! {
            () = self.server.run(listener, stop) => {}
            () = faults::follow(&self.server, &self.faults, &self.folder) => {}
        }
    }

    /// Called when nothing is served any more. The next start in this folder writes a new `ready`.
    fn remove_ready_file(&self) {
        // The next start removes a file that stays, or reports that it cannot.
        let _ = fs::remove_file(self.folder.join("ready"));
    }
}

/// Runs the API server without weir.
fn run_api_server_only(
    prepared: PreparedPlayground,
    address: SocketAddr,
) -> Result<ExitCode, CommandError> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        signals::ignore_user_signal();
        signals::ignore_handover();
        signals::ignore_hangup();
        let listener = acceptor::bind(address)
            .and_then(tokio::net::TcpListener::from_std)
            .map_err(|why| CommandError::Startup(format!("cannot listen on {address}: {why}")))?;
        let stop = signals::stop_signal();
        prepared.announce(listener.local_addr()?, None)?;
        prepared.serve(listener, stop).await;
        prepared.remove_ready_file();
        Ok(ExitCode::SUCCESS)
    })
}

/// Runs the API server on its own thread and runtime, and weir in front of it.
fn run_with_weir(
    prepared: PreparedPlayground,
    proxy: ProxyArgs,
    logging: &Logging,
) -> Result<ExitCode, CommandError> {
    let listener = acceptor::bind(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0))?;
    let args = serve_args(&prepared.folder, listener.local_addr()?, proxy);
    let mut config = resolve_and_log(args)?;
    logging.attach_to(&mut config);

    let prepared = Arc::new(prepared);
    let served = Arc::clone(&prepared);
    let (stop_server, server_stopped) = oneshot::channel::<()>();
    let server_runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    let serving = thread::spawn(move || {
        server_runtime.block_on(async {
            let Ok(listener) = tokio::net::TcpListener::from_std(listener) else {
                return; // weir then reports that the API server is not reachable
            };
            let stop = async {
                let _ = server_stopped.await;
            };
            served.serve(listener, stop).await;
        });
    });

    let weir_runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let outcome = weir_runtime.block_on(async {
        signals::ignore_user_signal();
        signals::ignore_handover();
        signals::ignore_hangup();
        let app = App::bind(config)
            .await
            .map_err(|why| CommandError::Startup(why.to_string()))?;
        let addresses = app.addresses();
        let (stop, second_stop) = (signals::stop_signal(), signals::second_stop_signal());
        prepared.announce(addresses.clients, Some(addresses.admin))?;
        let outcome = app.run(stop, second_stop).await;
        prepared.remove_ready_file();
        Ok::<_, CommandError>(outcome)
    });
    drop(stop_server);
    if serving.join().is_err() {
        return Err(CommandError::Startup(
            "the API server ended in a panic".to_owned(),
        ));
    }
    outcome.map(exit_code)
}

/// The address by which this machine's clients reach a socket that is bound to `address`. A wildcard
/// address is in no certificate, and a container's image listens on one: its port is published on the
/// host's loopback.
fn local_address(mut address: SocketAddr) -> SocketAddr {
    match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => address.set_ip(Ipv4Addr::LOCALHOST.into()),
        IpAddr::V6(ip) if ip.is_unspecified() => address.set_ip(Ipv6Addr::LOCALHOST.into()),
        IpAddr::V4(_) | IpAddr::V6(_) => {}
    }
    address
}

/// The flags of weir in front of the API server at `upstream`. Flags that the operator gave stay.
fn serve_args(folder: &Path, upstream: SocketAddr, mut proxy: ProxyArgs) -> ServeArgs {
    let file = |name: &str| folder.join(name);
    // A container's image listens on every address of the container, and its data are made up.
    proxy.operation.admin.may_be_open = true;
    let (serving, identity) = (&mut proxy.serving, &mut proxy.identity);
    if serving.tls_cert_file.is_none() && serving.tls_private_key_file.is_none() {
        serving.tls_cert_file = Some(file("tls.crt"));
        serving.tls_private_key_file = Some(file("tls.key"));
    }
    identity
        .client_ca_file
        .get_or_insert_with(|| file("ca.crt"));
    identity
        .token_auth_file
        .get_or_insert_with(|| file("tokens.csv"));
    if identity.service_account_key_file.is_empty() && identity.service_account_issuer.is_empty() {
        identity.service_account_key_file = vec![file("service-account.pub")];
        identity.service_account_issuer = vec![ISSUER.to_owned()];
    }
    let upstream = UpstreamArgs {
        upstream: vec![format!("https://{upstream}")],
        upstream_ca_file: Some(file("ca.crt")),
        proxy_client_cert_file: Some(file("front-proxy-client.crt")),
        proxy_client_key_file: Some(file("front-proxy-client.key")),
        ..UpstreamArgs::default()
    };
    ServeArgs { upstream, proxy }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::local_address;

    #[test]
    fn clients_reach_a_wildcard_address_by_the_loopback() {
        for (bound, reached) in [
            ("0.0.0.0:6443", "127.0.0.1:6443"),
            ("[::]:6443", "[::1]:6443"),
            ("192.0.2.1:6443", "192.0.2.1:6443"),
        ] {
            let bound: SocketAddr = bound.parse().unwrap();
            assert_eq!(local_address(bound).to_string(), reached);
        }
    }
}
