//! `weir ctl`: sets, lists and ends levers in a running weir, through its control socket.

mod client;
mod output;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};

use crate::cli::flags::LoggingFormat;
use crate::cli::flags::environment::Environment;
use crate::cli::process::exit::{exit_with_failure, print_stdout};
use crate::control::message::{ControlAnswer, ControlRequest, PullAction, PullRequest, Switch};
use crate::flag_values::{name_parser, parse_positive_duration};
use weir_kubernetes::numeric::saturating_u64;
use weir_limits::levers::{
    LeverTarget, NamePattern, ServiceAccountPattern, SourceRange, TotalOverride,
};
use weir_talkers::{Dimension, TopTalkersQuery, UsageMeasure, Window};

/// The exit code if weir cannot be reached, as that of `weir status`.
const NOT_REACHABLE: u8 = 3;

/// `weir ctl`.
#[derive(Args, Clone, Debug)]
pub(crate) struct CtlArgs {
    /// weir's --control-socket; by default the first of its default paths at which a weir answers.
    #[arg(long, value_name = "FILE", global = true)]
    control_socket: Option<PathBuf>,
    /// What to do.
    #[command(subcommand)]
    command: CtlCommand,
}

/// What can be done.
#[derive(Clone, Debug, Subcommand)]
enum CtlCommand {
    /// Reject all requests of a target, at once, also those that wait; with --now, end those in flight.
    Block(BlockArgs),
    /// Let requests pass without any limit, except those of block and limit.
    Bypass(BypassCommand),
    /// End the connections, watches and tunnels of a target, spread over some time. Its clients connect again, unless they are blocked.
    Disconnect(DisconnectArgs),
    /// End this weir as by SIGTERM: it is not ready any more, finishes what is under way, and exits. There is no way back.
    Drain(DrainArgs),
    /// Let all limits only count, or enforce all of them, however they are configured.
    DryRun(DryRunCommand),
    /// Admit only so many requests of a target, all of its clients together.
    Limit(LimitCommand),
    /// List the levers in force.
    List,
    /// List the names that weir has seen, those with most requests first.
    Talkers(TalkersArgs),
    /// Set the total of all requests in flight, instead of --max-requests-inflight.
    Total(TotalCommand),
    /// End levers before their time.
    Undo(UndoArgs),
}

/// `weir ctl block`.
#[derive(Args, Clone, Debug)]
struct BlockArgs {
    #[command(flatten)]
    target: TargetArgs,
    /// End requests in flight, watches and tunnels, too. The API server may have executed what they asked for.
    #[arg(long)]
    now: bool,
    #[command(flatten)]
    terms: TermArgs,
    #[command(flatten)]
    protection: ProtectionArgs,
}

/// `weir ctl disconnect`.
#[derive(Args, Clone, Debug)]
struct DisconnectArgs {
    #[command(flatten)]
    target: TargetArgs,
    /// The time over which the ends are spread, at most 24h.
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = parse_positive_duration)]
    over: Duration,
    /// Why, for the log and the status page.
    #[arg(long, value_name = "TEXT", default_value = "")]
    reason: String,
    /// Your name, for the log. weir also logs the user and the process of this command.
    #[arg(long = "as", value_name = "NAME")]
    claimed_name: Option<String>,
    #[command(flatten)]
    protection: ProtectionArgs,
}

/// `weir ctl limit`.
#[derive(Args, Clone, Debug)]
struct LimitCommand {
    /// Requests a second, and as many at once.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), required_unless_present = "inflight")]
    qps: Option<u32>,
    /// Requests at a time. Those that were admitted before do not count.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    inflight: Option<u32>,
    #[command(flatten)]
    target: TargetArgs,
    #[command(flatten)]
    terms: TermArgs,
    #[command(flatten)]
    protection: ProtectionArgs,
}

/// `weir ctl total`.
#[derive(Args, Clone, Debug)]
struct TotalCommand {
    /// Seats of all priority levels together, of all replicas; with max-in-flight, a third of them is for mutating requests. auto:
    /// weir finds the total, as with --max-requests-inflight=auto. In its place comes what was in force before, when it ends.
    #[arg(value_name = "N|auto")]
    total: TotalOverride,
    #[command(flatten)]
    terms: TermArgs,
    /// Set it also above the seats that the API server publishes as its own.
    #[arg(long)]
    force: bool,
}

/// `weir ctl bypass`.
#[derive(Args, Clone, Debug)]
struct BypassCommand {
    /// on: priority and fairness, max-in-flight, event limits and client limits are lifted, also for requests that wait.
    /// Authentication, levers that block and limit, and the bounds on memory, heads, upgrades and connections stay. off: the
    /// bypass in force ends.
    #[arg(value_name = "on|off", hide_possible_values = true)]
    bypass: Switch,
    #[command(flatten)]
    terms: TermArgs,
}

/// `weir ctl drain`.
#[derive(Args, Clone, Debug)]
struct DrainArgs {
    /// Your name, for the log.
    #[arg(long = "as", value_name = "NAME")]
    claimed_name: Option<String>,
}

/// `weir ctl dry-run`.
#[derive(Args, Clone, Debug)]
struct DryRunCommand {
    /// on: priority and fairness, max-in-flight, event limits and client limits only count; requests that wait pass. off: all of
    /// them are enforced, also those that are configured as a dry run.
    #[arg(value_name = "on|off", hide_possible_values = true)]
    dry_run: Switch,
    #[command(flatten)]
    terms: TermArgs,
}

/// Which requests. Several flags: those that match all. One flag several times: those that match one
/// of its values. A value with * at its end stands for all that begin alike.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Target")]
#[group(required = true, multiple = true)]
struct TargetArgs {
    /// Name of a user.
    #[arg(long, value_name = "NAME")]
    user: Vec<NamePattern>,
    /// Group of users.
    #[arg(long, value_name = "NAME")]
    group: Vec<NamePattern>,
    /// Service account.
    #[arg(long, value_name = "NAMESPACE:NAME")]
    service_account: Vec<ServiceAccountPattern>,
    /// User-Agent header.
    #[arg(long, value_name = "TEXT")]
    user_agent: Vec<NamePattern>,
    /// Namespace of the request.
    #[arg(long, value_name = "NAME")]
    namespace: Vec<NamePattern>,
    /// Resource, as pods, deployments.apps or pods/log; or the path of a request for no resource.
    #[arg(long, value_name = "NAME")]
    resource: Vec<NamePattern>,
    /// Verb, as get, list, watch, create, update, patch or delete.
    #[arg(long, value_name = "VERB")]
    verb: Vec<NamePattern>,
    /// Address of clients, or their network.
    #[arg(long, value_name = "ADDRESS[/BITS]")]
    source: Vec<SourceRange>,
}

/// How long, and why.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Terms")]
struct TermArgs {
    /// How long it is in force, at most 24h. It ends by itself, and with the process.
    #[arg(long = "for", value_name = "DURATION", default_value = "10m0s", value_parser = parse_positive_duration)]
    duration: Duration,
    /// Why. The clients that it rejects see it, and so do the log and the status page.
    #[arg(long, value_name = "TEXT", default_value = "")]
    reason: String,
    /// Your name, for the log. weir also logs the user and the process of this command.
    #[arg(long = "as", value_name = "NAME")]
    claimed_name: Option<String>,
}

/// Protected requesters, and a trial.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Terms")]
struct ProtectionArgs {
    /// Include system:masters, nodes, the control plane, kube-system's service accounts, weir's own user and probes. Without it a
    /// target that names or covers them is refused, and any other spares them.
    #[arg(long)]
    force: bool,
    /// Only print how many requests of the last minute it would have hit, as far as the top talkers know.
    #[arg(long)]
    dry_run: bool,
}

/// `weir ctl talkers`.
#[derive(Args, Clone, Debug)]
struct TalkersArgs {
    /// Group by this.
    #[arg(long, value_name = "WHAT", default_value = "user", value_parser = name_parser(Dimension::DISPLAY_ORDER, Dimension::name))]
    by: Dimension,
    /// Of the last minutes.
    #[arg(long, value_name = "TIME", default_value = "1m", value_parser = name_parser(Window::ALL, Window::name))]
    window: Window,
    /// Sort by this.
    #[arg(long, value_name = "MEASURE", default_value = "requests", value_parser = name_parser(UsageMeasure::DISPLAY_ORDER, UsageMeasure::name))]
    sort: UsageMeasure,
    /// Most rows.
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u16).range(1..=1000))]
    limit: u16,
}

/// `weir ctl undo`.
#[derive(Args, Clone, Debug)]
struct UndoArgs {
    /// The ids that weir ctl list prints.
    #[arg(value_name = "ID", required = true)]
    ids: Vec<u64>,
    /// Your name, for the log.
    #[arg(long = "as", value_name = "NAME")]
    claimed_name: Option<String>,
}

impl CtlCommand {
    fn into_request(self) -> ControlRequest {
        match self {
            Self::Block(BlockArgs {
                target,
                now,
                terms,
                protection,
            }) => {
                let block = PullRequest {
                    now,
                    ..PullRequest::default()
                };
                pull(terms, of_target(target, &protection, block))
            }
            Self::Bypass(BypassCommand { bypass, terms }) => {
                pull(terms, of_setting(PullAction::Bypass(bypass)))
            }
            Self::Disconnect(DisconnectArgs {
                target,
                over,
                reason,
                claimed_name,
                protection,
            }) => {
                let terms = TermArgs {
                    duration: over,
                    reason,
                    claimed_name,
                };
                let disconnect = of_setting(PullAction::Disconnect);
                pull(terms, of_target(target, &protection, disconnect))
            }
            Self::Drain(DrainArgs { claimed_name }) => ControlRequest::Drain { claimed_name },
            Self::DryRun(DryRunCommand { dry_run, terms }) => {
                pull(terms, of_setting(PullAction::DryRun(dry_run)))
            }
            Self::Limit(args) => {
                let limit = PullRequest {
                    action: PullAction::Limit,
                    qps: args.qps,
                    in_flight: args.inflight,
                    ..PullRequest::default()
                };
                pull(args.terms, of_target(args.target, &args.protection, limit))
            }
            Self::List => ControlRequest::List,
            Self::Talkers(args) => ControlRequest::Talkers(TopTalkersQuery {
                window: args.window,
                by: args.by,
                sort: args.sort,
                limit: args.limit.into(),
            }),
            Self::Total(TotalCommand {
                total,
                terms,
                force,
            }) => {
                let total = of_setting(PullAction::Total(total));
                pull(terms, PullRequest { force, ..total })
            }
            Self::Undo(UndoArgs { ids, claimed_name }) => {
                ControlRequest::Undo { ids, claimed_name }
            }
        }
    }
}

fn of_target(target: TargetArgs, protection: &ProtectionArgs, action: PullRequest) -> PullRequest {
    PullRequest {
        target: LeverTarget {
            users: target.user,
            groups: target.group,
            service_accounts: target.service_account,
            user_agents: target.user_agent,
            namespaces: target.namespace,
            resources: target.resource,
            verbs: target.verb,
            sources: target.source,
        },
        force: protection.force,
        dry_run: protection.dry_run,
        ..action
    }
}

fn of_setting(action: PullAction) -> PullRequest {
    PullRequest {
        action,
        ..PullRequest::default()
    }
}

fn pull(terms: TermArgs, action: PullRequest) -> ControlRequest {
    ControlRequest::Pull(Box::new(PullRequest {
        for_ms: Some(saturating_u64(terms.duration.as_millis())),
        reason: terms.reason,
        claimed_name: terms.claimed_name,
        ..action
    }))
}

/// A line of arguments.
#[derive(Parser)]
#[command(name = "weir ctl", no_binary_name = true)]
struct CtlLine {
    #[command(flatten)]
    args: CtlArgs,
}

/// Runs a command that another one offers, by `socket` or the default paths. Returns what it would print,
/// a line each. Waits for the answer.
pub(crate) fn run_line(socket: Option<PathBuf>, arguments: Vec<String>) -> Vec<String> {
    let parsed = match CtlLine::try_parse_from(arguments) {
        Ok(line) => line.args,
        Err(why) => return text_lines(&why.to_string()),
    };
    let args = CtlArgs {
        control_socket: socket,
        ..parsed
    };
    match ask(args) {
        Ok((text, failures)) => text_lines(&text).into_iter().chain(failures).collect(),
        Err(why) => vec![why],
    }
}

fn text_lines(text: &str) -> Vec<String> {
    text.lines().map(str::to_owned).collect()
}

/// The text of the answer, and what has failed.
///
/// # Errors
/// weir does not answer.
fn ask(args: CtlArgs) -> Result<(String, Vec<String>), String> {
    let paths = match args.control_socket {
        Some(path) => vec![path],
        None => Environment::of_process().control_sockets(),
    };
    let answer = client::ask(&paths, &args.command.into_request())?;
    let text = output::render(&answer);
    let failures = match answer {
        ControlAnswer::Error { lines } => lines,
        ControlAnswer::Undone { unknown, .. } => {
            let line = |id| format!("there is no lever {id}");
            unknown.into_iter().map(line).collect()
        }
        ControlAnswer::Draining { .. }
        | ControlAnswer::DryRun { .. }
        | ControlAnswer::Levers { .. }
        | ControlAnswer::Pulled { .. }
        | ControlAnswer::Talkers(_) => Vec::new(),
    };
    Ok((text, failures))
}

/// Runs the command.
pub(super) fn run(args: CtlArgs) -> ExitCode {
    let (text, failures) = match ask(args) {
        Ok(answered) => answered,
        Err(why) => {
            let _ = exit_with_failure(&why, LoggingFormat::Text); // its code is another
            return ExitCode::from(NOT_REACHABLE);
        }
    };
    let printed = match text.is_empty() {
        true => ExitCode::SUCCESS,
        false => print_stdout(text.as_bytes()),
    };
    let failures = failures.iter();
    failures.fold(printed, |_, line| {
        exit_with_failure(line, LoggingFormat::Text)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_weir_top_is_read_as_the_command_line_is() {
        let line = ["limit", "--user-agent=a b/1", "--qps=12"].map(str::to_owned);
        let parsed = CtlLine::try_parse_from(line).unwrap();
        let ControlRequest::Pull(pull) = parsed.args.command.into_request() else {
            panic!("a limit is a lever");
        };
        assert_eq!((pull.action, pull.qps), (PullAction::Limit, Some(12)));
        assert_eq!(pull.target.to_string(), "user-agent=\"a b/1\"");
        let nowhere = Some(PathBuf::from("/nonexistent/weir.sock"));
        let answered = run_line(nowhere.clone(), vec!["undo".to_owned(), "1".to_owned()]);
        assert!(answered[0].contains("not reachable"), "{answered:?}");
        let answered = run_line(nowhere, vec!["limit".to_owned(), "--qps=".to_owned()]);
        assert!(answered.join(" ").contains("--qps"), "{answered:?}");
    }
}
