//! `weir playground`: weir and a small API server behind it, with certificates made on the spot.
//!
//! The two know nothing of each other but an address and files, as in a real installation.

mod fairness;

use std::fmt;
use std::fs;
use std::fs::DirBuilder;
use std::io;
use std::net::IpAddr;
use std::net::Ipv4Addr;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::num::NonZeroUsize;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use clap::Args;
use tokio::sync::oneshot;

use crate::app::App;
use crate::cli::CommandError;
use crate::cli::config_resolver;
use crate::cli::flags;
use crate::cli::flags::ProxyArgs;
use crate::cli::flags::ServeArgs;
use crate::cli::flags::UpstreamArgs;
use crate::cli::playground::fairness::ServerFairness;
use crate::cli::process::logging;
use crate::cli::process::logging::Logging;
use crate::cli::serve;
use crate::playground::Certificates;
use crate::playground::Fairness;
use crate::playground::ISSUER;
use crate::playground::PlaygroundServer;
use crate::playground::PlaygroundSettings;
use crate::playground::auth::kubeconfig;
use crate::server::acceptor;

/// The mode of a folder for one user.
const OWNER_ONLY: u32 = 0o700;

/// `weir playground`.
#[derive(Args, Clone, Debug)]
pub struct PlaygroundArgs {
    /// The API server.
    #[command(flatten)]
    pub server: ServerArgs,
    /// weir in front of it.
    #[command(flatten)]
    pub proxy: ProxyArgs,
}

/// The API server of the playground.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Playground")]
pub struct ServerArgs {
    /// Where kubeconfig, certificates, tokens and addresses are written; a fresh temporary folder if not given.
    /// Certificates and tokens that are there already are used again.
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// Run the API server alone, on --bind-address and --secure-port, with no weir in front.
    #[arg(long)]
    pub apiserver_only: bool,
    /// Nodes to begin with.
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub nodes: usize,
    /// Pods to begin with.
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub pods: usize,
    /// How many requests the API server serves at full speed; more of them share it. Unlimited if not given.
    #[arg(long, value_name = "N")]
    pub capacity: Option<NonZeroUsize>,
    /// How long the API server takes to serve a request at full speed.
    #[arg(long, value_name = "DURATION", default_value = "0s", value_parser = flags::parse_duration)]
    pub service_time: Duration,
    /// The API server's own limit of requests in flight, for comparisons; refuses as kube-apiserver does.
    #[arg(long, value_name = "N")]
    pub max_in_flight: Option<usize>,
    /// Seats of the API server's own priority and fairness, for comparisons; queues and refuses as kube-apiserver does, by the
    /// built-in flow schemas and priority levels. kube-apiserver has 600: its --max-requests-inflight and
    /// --max-mutating-requests-inflight together. None if not given.
    #[arg(long, value_name = "SEATS", conflicts_with = "max_in_flight")]
    pub apiserver_concurrency_limit: Option<NonZeroU32>,
    /// CPU time that the API server burns for each answer.
    #[arg(long, value_name = "DURATION", default_value = "0s", value_parser = flags::parse_duration)]
    pub service_cpu: Duration,
    /// CPU time that the API server burns for each refusal of its own.
    #[arg(long, value_name = "DURATION", default_value = "0s", value_parser = flags::parse_duration)]
    pub refusal_cpu: Duration,
}

/// Runs the command.
pub(super) fn run(args: PlaygroundArgs) -> ExitCode {
    let format = args.proxy.operation.logging_format;
    let logging = match logging::start(&args.proxy.operation) {
        Ok(logging) => logging,
        Err(why) => return why.report(format),
    };
    serve::raise_open_file_limit();
    let PlaygroundArgs { server, mut proxy } = args;
    // Its tokens are for everybody who reads the folder: not for the network, unless it is asked for.
    let address = *proxy
        .serving
        .bind_address
        .get_or_insert(IpAddr::V4(Ipv4Addr::LOCALHOST));
    let address = SocketAddr::new(address, proxy.serving.secure_port);
    let ended = prepare(&server).and_then(|made| {
        if server.apiserver_only {
            run_api_server_only(made, address)
        } else {
            run_with_weir(made, proxy, &logging)
        }
    });
    drop(logging); // what was logged comes before what is said of the end
    ended.unwrap_or_else(|why| why.report(format))
}

impl CommandError {
    fn startup_error(what: &str) -> impl Fn(&dyn fmt::Display) -> Self {
        move |why| Self::Startup(format!("{what}: {why}"))
    }
}

impl From<io::Error> for CommandError {
    fn from(why: io::Error) -> Self {
        Self::Startup(why.to_string())
    }
}

/// The folder, what is in it, and the API server, not yet running.
struct PreparedPlayground {
    folder: PathBuf,
    certificates: Certificates,
    server: PlaygroundServer,
    /// CPU time of an answer and of a refusal.
    cpu_times: [Duration; 2],
}

fn prepare(args: &ServerArgs) -> Result<PreparedPlayground, CommandError> {
    let folder = match &args.dir {
        Some(folder) => folder.clone(),
        None => std::env::temp_dir().join(format!("weir-playground-{:08x}", fastrand::u32(..))),
    };
    let cannot =
        |why: io::Error| CommandError::Startup(format!("cannot use {}: {why}", folder.display()));
    match &args.dir {
        Some(folder) => fs::create_dir_all(folder),
        // In a folder that everybody may write to: one that is there already is somebody else's.
        None => DirBuilder::new().mode(OWNER_ONLY).create(&folder),
    }
    .map_err(cannot)?;
    for stale in ["ready", "address", "admin-address"] {
        match fs::remove_file(folder.join(stale)) {
            Err(why) if why.kind() != io::ErrorKind::NotFound => return Err(cannot(why)),
            _ => {}
        }
    }
    let certificates = match Certificates::read_from(&folder) {
        Some(certificates) => certificates,
        None => {
            let made = Certificates::generate()
                .map_err(|why| CommandError::startup_error("cannot make certificates")(&why))?;
            made.write_to(&folder).map_err(cannot)?;
            made
        }
    };
    let settings = PlaygroundSettings {
        nodes: args.nodes,
        pods: args.pods,
        capacity: args.capacity,
        service_time: args.service_time,
        max_in_flight: args.max_in_flight,
        service_cpu: args.service_cpu,
        rejection_cpu: args.refusal_cpu,
        ..PlaygroundSettings::default()
    };
    let fairness = args.apiserver_concurrency_limit.map(|seats| {
        let fairness: Arc<dyn Fairness> = Arc::new(ServerFairness::new(seats));
        fairness
    });
    let server = PlaygroundServer::with_fairness(settings, &certificates, fairness)
        .map_err(|why| CommandError::startup_error("cannot make the API server")(&why))?;
    Ok(PreparedPlayground {
        folder,
        certificates,
        server,
        cpu_times: [args.service_cpu, args.refusal_cpu],
    })
}

impl PreparedPlayground {
    /// Tells where it is served: for people, and in files for programs. `ready` comes last.
    fn announce(&self, address: SocketAddr, admin: Option<SocketAddr>) -> io::Result<()> {
        let Self {
            folder,
            certificates,
            server: _,
            cpu_times: [answer, refusal],
        } = self;
        let url = format!("https://{address}");
        kubeconfig::write(&folder.join("kubeconfig"), &url, certificates)?;
        fs::write(folder.join("address"), address.to_string())?;
        if let Some(admin) = admin {
            fs::write(folder.join("admin-address"), admin.to_string())?;
        }
        // Not the admin's: system:masters is never refused.
        let alice = certificates.users.iter().find(|user| user.name == "alice");
        let token = alice.map_or("", |alice| alice.token.as_str());
        let here = folder.display();
        if !(answer.is_zero() && refusal.is_zero()) {
            println!(
                "The API server works {answer:?} of CPU for an answer, and {refusal:?} for a refusal of its own."
            );
        }
        println!("The API server is at {url}; everything about it is in {here}. Try:\n");
        println!("  kubectl --kubeconfig {here}/kubeconfig get nodes");
        println!("  kubectl --kubeconfig {here}/kubeconfig --context alice get pods -n default");
        println!(
            "  curl --cacert {here}/ca.crt -H 'Authorization: Bearer {token}' {url}/api/v1/nodes"
        );
        println!("  wrk -t 2 -c 700 -d 10s -H 'Authorization: Bearer {token}' {url}/api/v1/nodes");
        if let Some(admin) = admin {
            println!("  curl http://{admin}/metrics");
        }
        println!();
        fs::write(folder.join("ready"), "")
    }

    /// Nothing is served any more; whoever starts here again waits for a new `ready`.
    fn remove_ready_file(&self) {
        // What cannot be removed is removed at the next start, or told there.
        let _ = fs::remove_file(self.folder.join("ready"));
    }
}

/// The API server with nothing in front.
fn run_api_server_only(
    made: PreparedPlayground,
    address: SocketAddr,
) -> Result<ExitCode, CommandError> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        serve::ignore_other_signals();
        let listener = acceptor::bind(address)
            .and_then(tokio::net::TcpListener::from_std)
            .map_err(|why| CommandError::Startup(format!("cannot listen on {address}: {why}")))?;
        let stop = serve::stop_signal();
        made.announce(listener.local_addr()?, None)?;
        made.server.run(listener, stop).await;
        made.remove_ready_file();
        Ok(ExitCode::SUCCESS)
    })
}

/// The API server on a runtime of its own and weir in front of it, each as if the other were far away.
fn run_with_weir(
    made: PreparedPlayground,
    proxy: ProxyArgs,
    logging: &Logging,
) -> Result<ExitCode, CommandError> {
    let listener = acceptor::bind(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0))?;
    let args = serve_args(&made.folder, listener.local_addr()?, proxy);
    let mut config =
        config_resolver::resolve(args).map_err(|faults| CommandError::Usage(faults.to_string()))?;
    logging.attach_to(&mut config);

    let server = made.server.clone();
    let (end, ended) = oneshot::channel::<()>();
    let behind = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    let serving = thread::spawn(move || {
        behind.block_on(async {
            let Ok(listener) = tokio::net::TcpListener::from_std(listener) else {
                return; // weir then says that nobody answers
            };
            let stop = async {
                let _ = ended.await;
            };
            server.run(listener, stop).await;
        });
    });

    let control = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let code = control.block_on(async {
        serve::ignore_other_signals();
        let app = App::bind(config)
            .await
            .map_err(|why| CommandError::Startup(why.to_string()))?;
        let addresses = app.addresses();
        let (stop, at_once) = (serve::stop_signal(), serve::second_stop_signal());
        made.announce(addresses.clients, Some(addresses.admin))?;
        let ended = app.run(stop, at_once).await;
        made.remove_ready_file();
        Ok::<_, CommandError>(ended)
    });
    drop(end);
    if serving.join().is_err() {
        return Err(CommandError::Startup(
            "the API server ended in a panic".to_owned(),
        ));
    }
    code.map(serve::exit_code)
}

/// The flags of a weir that stands in front of the API server at `upstream`, as an operator would give them.
fn serve_args(folder: &Path, upstream: SocketAddr, mut proxy: ProxyArgs) -> ServeArgs {
    let file = |name: &str| folder.join(name);
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
        upstream: Some(format!("https://{upstream}")),
        upstream_ca_file: Some(file("ca.crt")),
        proxy_client_cert_file: Some(file("front-proxy-client.crt")),
        proxy_client_key_file: Some(file("front-proxy-client.key")),
        ..UpstreamArgs::default()
    };
    ServeArgs { upstream, proxy }
}
