//! `weir explain`: what the policies decide about a request, or about many.
//!
//! The policies are those of the flags of `weir serve`. Certificates, keys and the API server's
//! address are not read.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io::{BufWriter, Read};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::{fs, io};

use clap::{Args, ValueEnum};

use crate::cli::admin_client;
use crate::cli::admin_client::AdminUrl;
use crate::cli::flags::{LoggingFormat, ServeArgs};
use crate::cli::process::exit::{CommandError, exit_with_failure, print_stdout, to_json};
use crate::cli::process::{logging, resolve};
use weir_explain::batch::{BatchCounts, ExplanationLine};
use weir_explain::explainer::{Explainer, ResolvedRequest};
use weir_explain::now::{LevelsNow, RunningLimits};
use weir_explain::request::{ExplainRequest, RequestUrl};
use weir_explain::{batch, tree};

/// Bytes that are collected before they are read or written.
const BUFFER_BYTES: usize = 256 << 10;

/// Where the queues of a running weir are shown.
const DUMP_QUEUES_PATH: &str = "/debug/api_priority_and_fairness/dump_queues";

/// `weir explain`.
#[derive(Args, Clone, Debug)]
pub(crate) struct ExplainArgs {
    /// The request.
    #[command(flatten)]
    pub(crate) request: RequestArgs,
    /// Whose policies.
    #[command(flatten)]
    pub(crate) serve: ServeArgs,
}

/// The request to explain.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Explain")]
pub(crate) struct RequestArgs {
    /// The method, as GET.
    #[arg(required_unless_present = "batch", requires = "url")]
    method: Option<String>,
    /// The path with its query, or the whole URL.
    #[arg(required_unless_present = "batch")]
    url: Option<String>,
    /// Explain each line of the standard input instead: a JSON object with method, url, user, groups. One JSON object a line comes
    /// out; a line that is not a request gives an object with its number and the error, and the exit code 1.
    #[arg(long, conflicts_with_all = ["method", "url", "user", "user_agent", "source_address", "body", "content_type", "object_count", "watch_count"])]
    batch: bool,
    /// The user; system:anonymous if not given. Every other user is in the group system:authenticated.
    #[arg(long, value_name = "NAME")]
    user: Option<String>,
    /// A group of the user. May be given several times. If not given, a service account has the groups of its namespace.
    #[arg(long, value_name = "NAME", requires = "user")]
    group: Vec<String>,
    /// An extra attribute of the user, as KEY=VALUE. May be given several times.
    #[arg(long, value_name = "KEY=VALUE", value_parser = parse_extra, requires = "user")]
    extra: Vec<(String, String)>,
    /// The header User-Agent, which client limits may distinguish clients by.
    #[arg(long, value_name = "TEXT")]
    user_agent: Option<String>,
    /// The client's address, which client limits may distinguish clients by.
    #[arg(long, value_name = "IP")]
    source_address: Option<IpAddr>,
    /// The request's body, which the event limits read; - is the standard input.
    #[arg(long, value_name = "FILE")]
    body: Option<PathBuf>,
    /// The header Content-Type; JSON if not given.
    #[arg(long, value_name = "TYPE")]
    content_type: Option<String>,
    /// How many objects of the resource there are, by which lists are estimated. A running weir counts them; here they are not known.
    #[arg(long, value_name = "N")]
    object_count: Option<u64>,
    /// How large an object is in storage, in bytes; 0 is not known, and counts as the largest.
    #[arg(
        long,
        value_name = "BYTES",
        default_value_t = 0,
        requires = "object_count"
    )]
    average_object_size: u64,
    /// How many watches receive the write.
    #[arg(long, value_name = "N", default_value_t = 0)]
    watch_count: usize,
    /// Also say what would become of the request now, in the running weir of this admin address (http://HOST:PORT, or
    /// https://HOST:PORT).
    #[arg(long, value_name = "URL", value_parser = AdminUrl::parse)]
    admin: Option<AdminUrl>,
    /// How it is reached over TLS.
    #[command(flatten)]
    access: admin_client::AdminAccessArgs,
    /// How it is printed; --batch prints JSON.
    #[arg(short, long, value_name = "FORMAT", value_enum, default_value_t = ExplainFormat::Tree)]
    output: ExplainFormat,
}

/// How an explanation is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ExplainFormat {
    /// As a line of --batch.
    Json,
    /// For people.
    Tree,
}

fn parse_extra(text: &str) -> Result<(String, String), &'static str> {
    let pair = text.split_once('=').filter(|(key, _)| !key.is_empty());
    let (key, value) = pair.ok_or("expected KEY=VALUE")?;
    Ok((key.to_owned(), value.to_owned()))
}

/// Runs the command.
pub(crate) fn run(args: ExplainArgs) -> ExitCode {
    let format = args.serve.proxy.operation.logging_format;
    let logging = match logging::start(&args.serve.proxy.operation) {
        Ok(logging) => logging,
        Err(why) => return why.report(format),
    };
    let result = explain(args);
    drop(logging); // prints all warnings before the error
    result.unwrap_or_else(|why| why.report(format))
}

fn explain(args: ExplainArgs) -> Result<ExitCode, CommandError> {
    let ExplainArgs { request, serve } = args;
    let policies = resolve::resolve_policies_and_log(&serve)?;
    let explainer = Explainer::new(policies);
    let admin = request.admin.as_ref();
    let admin = admin.map(|admin| request.access.resolve(admin)).transpose();
    let admin = admin.map_err(CommandError::Usage)?;
    let now = admin.as_ref().map(fetch_now).transpose()?;
    if request.batch {
        return Ok(explain_input(&explainer, now.as_ref()));
    }
    let format = request.output;
    let body = request.body.as_deref().map(read_body).transpose()?;
    let request = explain_request(request, body.as_deref());
    let resolved =
        ResolvedRequest::new(&request).map_err(|why| CommandError::Usage(why.to_owned()))?;
    let explanation = explainer.explain(&resolved);
    let now = now.as_ref().map(|levels| levels.explain(&explanation));
    let text = match format {
        ExplainFormat::Tree => {
            tree::render(&resolved, &explanation, explainer.dangling(), now.as_ref())
        }
        ExplainFormat::Json => {
            let line = ExplanationLine {
                explanation: &explanation,
                now,
            };
            to_json(&line)?
        }
    };
    Ok(print_stdout(text.as_bytes()))
}

/// Explains the lines of the standard input.
fn explain_input(explainer: &Explainer, now: Option<&LevelsNow>) -> ExitCode {
    let input = io::BufReader::with_capacity(BUFFER_BYTES, io::stdin().lock());
    let output = BufWriter::with_capacity(BUFFER_BYTES, io::stdout().lock());
    match batch::explain_lines(explainer, now, input, output) {
        Ok(BatchCounts { failed: 0, .. }) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(why) if why.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(why) => exit_with_failure(&why, LoggingFormat::Text),
    }
}

fn explain_request(args: RequestArgs, body: Option<&str>) -> ExplainRequest<'_> {
    let mut extra: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (key, value) in args.extra {
        extra.entry(key).or_default().push(value);
    }
    let mut request = ExplainRequest {
        method: args.method.map(Cow::Owned),
        url: args.url.map(|url| RequestUrl(Cow::Owned(url.into_bytes()))),
        user: args.user,
        groups: Some(args.group).filter(|groups| !groups.is_empty()),
        extra,
        user_agent: args.user_agent,
        source_address: args.source_address,
        content_type: args.content_type,
        body: body.map(Cow::Borrowed),
        object_count: args.object_count,
        average_object_size_bytes: args.average_object_size,
        watch_count: args.watch_count,
        ..ExplainRequest::default()
    };
    request.authenticate();
    request
}

fn read_body(file: &Path) -> Result<String, CommandError> {
    let mut bytes = Vec::new();
    let read = match file.to_str() {
        Some("-") => io::stdin().lock().read_to_end(&mut bytes).map(|_| bytes),
        _ => fs::read(file),
    };
    let bytes = read.map_err(|why| {
        CommandError::Usage(format!("--body: cannot read {}: {why}", file.display()))
    })?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// The state of a running weir.
fn fetch_now(admin: &AdminUrl) -> Result<LevelsNow, CommandError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|why| CommandError::Startup(why.to_string()))?;
    let fetched = runtime.block_on(async {
        let status = admin_client::fetch_json(admin, "/status.json").await?;
        let status: RunningLimits =
            serde_json::from_value(status).map_err(|why| format!("not a status: {why}"))?;
        let queues = match status.has_queues() {
            true => admin_client::fetch_text(admin, DUMP_QUEUES_PATH).await?,
            false => String::new(),
        };
        Ok(LevelsNow::new(status, &queues))
    });
    fetched.map_err(|why: String| CommandError::Startup(format!("{admin} is not reachable: {why}")))
}
