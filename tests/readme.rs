//! The parts of the README that are made from the program: they are compared, and made anew with `WEIR_WRITE_README=1`.

#![expect(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::unwrap_used,
    reason = "what does not come as it should fails the test"
)]

use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::time::Duration;

use clap::Command;
use clap::CommandFactory;
use weir::cli::flags::Cli;
use weir::flowcontrol::bootstrap;
use weir::flowcontrol::controller;
use weir::flowcontrol::controller::Controller;
use weir::flowcontrol::controller::Enforcement;
use weir::limits::MaxInFlight;
use weir::limits::clients::enforce::ClientLimits;
use weir::limits::events::Groups;
use weir::limits::events::enforce;
use weir::limits::events::enforce::EventRateLimit;
use weir::limits::max_in_flight;
use weir::metrics::Registry;
use weir::observe::facts;
use weir::observe::facts::Facts;
use weir::observe::log_lines::DroppedLines;
use weir::observe::process;
use weir::observe::spans;
use weir::pipeline::holding::Holding;
use weir::pipeline::trace::RequestMetrics;

fn compare(name: &str, made: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md");
    let text = fs::read_to_string(&path).unwrap();
    let begin = format!("<!-- {name}: made by tests/readme.rs -->\n");
    let end = format!("<!-- end of {name} -->");
    let from = text.find(&begin).expect("the mark where it begins") + begin.len();
    let to = text.find(&end).expect("the mark where it ends");
    if std::env::var_os("WEIR_WRITE_README").is_some() {
        fs::write(&path, format!("{}{made}{}", &text[..from], &text[to..])).unwrap();
        return;
    }
    assert_eq!(
        &text[from..to],
        made,
        "the README's {name} are not those of the program: run this with WEIR_WRITE_README=1"
    );
}

fn table(command: &Command, except: Option<&Command>) -> String {
    let mut made = String::new();
    let mut heading = String::new();
    for argument in command.get_arguments() {
        let Some(long) = argument.get_long().filter(|long| *long != "help") else {
            continue;
        };
        if except.is_some_and(|other| other.get_arguments().any(|a| a.get_long() == Some(long))) {
            continue;
        }
        let own = argument.get_help_heading().unwrap_or("General");
        if own != heading {
            own.clone_into(&mut heading);
            write!(made, "\n| {heading} | default | |\n|---|---|---|\n").unwrap();
        }
        let names = argument
            .get_value_names()
            .filter(|_| argument.get_action().takes_values());
        let value = names.map_or_else(String::new, |names| format!(" {}", names[0]));
        let defaults: Vec<_> = argument
            .get_default_values()
            .iter()
            .map(|v| v.to_string_lossy())
            .collect();
        let default = if defaults.is_empty() || value.is_empty() {
            String::new()
        } else {
            format!("`{}`", defaults.join(","))
        };
        let help = argument
            .get_long_help()
            .or_else(|| argument.get_help())
            .unwrap()
            .to_string()
            .replace('\n', " ")
            .replace('<', "&lt;"); // a tag to Markdown, which would drop it
        writeln!(
            made,
            "| `--{long}{value}` | {default} | {} |",
            help.trim_end_matches('.')
        )
        .unwrap();
    }
    made
}

#[test]
fn the_flags_in_the_readme_are_those_of_the_program() {
    let command = Cli::command();
    let serve = command.find_subcommand("serve").unwrap();
    let playground = command.find_subcommand("playground").unwrap();
    let top = command.find_subcommand("top").unwrap();
    let made = format!(
        "{}\n`weir playground` takes all of these but those of the upstream, and:\n{}\n`weir top`:\n{}\n",
        table(serve, None),
        table(playground, Some(serve)),
        table(top, None)
    );
    compare("flags", &made);
}

#[test]
fn the_metrics_in_the_readme_are_those_of_the_program() {
    let registry = Registry::new();
    let limits = max_in_flight::Config {
        read_only: 1.into(),
        mutating: 1.into(),
    };
    let _limiter = MaxInFlight::new(limits, &registry);
    let _events = EventRateLimit::new(
        &enforce::Config {
            limits: Vec::new(),
            groups: Groups::All,
            retry_after: true,
        },
        &registry,
    );
    let _clients = ClientLimits::new(&[], &registry);
    let _requests = RequestMetrics::register(&registry);
    let _holding = Holding::new(Duration::from_secs(1), &registry);
    let fairness = controller::Config {
        server_concurrency_limit: 600,
        request_timeout: Duration::from_secs(60),
        enforcement: Enforcement::Enforce,
        consistent_reads_from_cache: true,
    };
    let apart = Registry::new(); // the two limiters share names and never run together
    let _controller = Controller::new(fairness, &bootstrap::complete(Vec::new()), &apart);
    let _server = weir::server::Metrics::register(&registry);
    Facts::register(None, Vec::new(), &registry);
    facts::dry_run(false, &registry);
    process::register(&registry);
    DroppedLines::default().register(&registry);
    let _spans = spans::Metrics::register(&registry);
    let _upstream = weir::upstream::Metrics::register(&registry);
    let _tokens = weir::identity::tokens::Metrics::register(&registry);
    let _access = weir::identity::access::Metrics::register(&registry);
    let _audit = weir::observe::audit::Metrics::register(&registry);
    let mut made = String::from("\n| metric | labels | |\n|---|---|---|\n");
    let mut all = [registry.described(), apart.described()].concat();
    all.sort_by(|a, b| a.name.cmp(&b.name));
    all.dedup_by(|a, b| a.name == b.name);
    for metric in all {
        let labels = metric.labels.join(", ");
        let help = metric
            .help
            .split_once("] ")
            .map_or(metric.help.as_str(), |(_, help)| help);
        writeln!(
            made,
            "| `{}` | {labels} | {} |",
            metric.name,
            help.trim_end_matches('.').replace('<', "&lt;")
        )
        .unwrap();
    }
    made.push('\n');
    compare("metrics", &made);
}
