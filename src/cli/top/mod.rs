//! `weir top`: the status page in a terminal, for example on a bastion host.
//!
//! The state ([`model`]), the rows that are displayed ([`view_model`], [`view_options`]) and their
//! drawing ([`view`]) are independent of the connection to weir ([`client`]) and of the terminal.
//! The terminal is restored however the command ends.
//!
//! # Layers
//!
//! | layer | modules |
//! |---|---|
//! | 0 | `view_options` |
//! | 1 | `view_model` |
//! | 2 | `format` `model` |
//! | 3 | `client` `panels` `text_table` |
//! | 4 | `view` |

pub(crate) mod client;
pub(crate) mod format;
pub(crate) mod model;
mod panels;
pub(crate) mod text_table;
pub(crate) mod view;
pub(crate) mod view_model;
pub(crate) mod view_options;

use std::io;
use std::io::IsTerminal;
use std::io::Write;
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use clap::Args;
use clap::ValueEnum;
use clap::builder::PossibleValuesParser;
use clap::builder::TypedValueParser;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event;
use ratatui::crossterm::event::Event;
use tokio::sync::mpsc;
use tokio::sync::watch;

use crate::cli::flags::LoggingFormat;
use crate::cli::process::exit::exit_with_failure;
use crate::cli::process::exit::exit_with_usage_error;
use crate::cli::process::signals;
use crate::cli::top::client::AdminUrl;
use crate::cli::top::model::KeyOutcome;
use crate::cli::top::model::StatusUpdate;
use crate::cli::top::model::TopModel;
use crate::cli::top::view_options::ScrollOffsets;
use crate::cli::top::view_options::ViewOptions;
use crate::encoding::printable::escape_json;
use crate::observe::status::replica_view::ALL_REPLICAS;
use crate::observe::top_talkers::Dimension;
use crate::observe::top_talkers::UsageMeasure;
use crate::observe::top_talkers::Window;
use crate::replicas::message::check_name;

/// Updates or key events that are not handled yet. weir sends one update a second.
const CHANNEL_CAPACITY: usize = 16;

/// Time between the two snapshots of `--once -o table`, from which rates are computed.
const SAMPLE_INTERVAL: Duration = Duration::from_secs(1);

/// `weir top`.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Top")]
pub(crate) struct TopArgs {
    /// weir's admin address: http://HOST:PORT.
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:6480", value_parser = AdminUrl::parse)]
    admin: AdminUrl,
    /// Print it once and end.
    #[arg(long)]
    once: bool,
    /// With --once: how. The table looks twice, a second apart, for its rates.
    #[arg(short, long, value_name = "FORMAT", value_enum, default_value_t = TopFormat::Table, requires = "once")]
    output: TopFormat,
    /// Group talkers by this (default user); with -o json, show only this grouping.
    #[arg(long, value_name = "WHAT", value_parser = name_parser(Dimension::DISPLAY_ORDER, Dimension::name))]
    by: Option<Dimension>,
    /// Talkers of the last minutes (1m, if nothing is said). JSON has all lists, unless one is asked for.
    #[arg(long, value_name = "TIME", value_parser = name_parser(Window::ALL, Window::name))]
    window: Option<Window>,
    /// Sort talkers by this (default requests).
    #[arg(long, value_name = "MEASURE", value_parser = name_parser(UsageMeasure::DISPLAY_ORDER, UsageMeasure::name))]
    sort: Option<UsageMeasure>,
    /// Where replicas have connections to each other: show one of them, by its name, or all of them together (all).
    #[arg(long, value_name = "NAME", default_value = ALL_REPLICAS, value_parser = parse_replica)]
    replica: String,
}

fn parse_replica(text: &str) -> Result<String, String> {
    check_name(text).map(|()| text.to_owned())
}

/// Parses one of `all` by its name, as `/debug/top_talkers` does.
fn name_parser<T: Copy + Send + Sync + 'static, const N: usize>(
    all: [T; N],
    name: fn(T) -> &'static str,
) -> impl TypedValueParser<Value = T> {
    PossibleValuesParser::new(all.map(name)).try_map(move |text| {
        let found = all.into_iter().find(|value| name(*value) == text);
        found.ok_or("there is no such thing")
    })
}

impl TopArgs {
    fn view_options(&self) -> ViewOptions {
        ViewOptions {
            by: self.by.unwrap_or_default(),
            window: self.window.unwrap_or_default(),
            talker_sort: self.sort.unwrap_or_default(),
            replica: Some(self.replica.clone()).filter(|name| name != ALL_REPLICAS),
            ..ViewOptions::default()
        }
    }
}

/// How it is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum TopFormat {
    /// As weir's /status.json has it.
    Json,
    /// For people.
    Table,
}

/// Runs the command until the user quits, or until the table is printed with `--once`.
pub(super) fn run(args: TopArgs) -> ExitCode {
    let runtime = match tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
    {
        Ok(runtime) => runtime,
        Err(why) => return exit_with_failure(&why, LoggingFormat::Text),
    };
    if args.once {
        return runtime.block_on(run_once(&args));
    }
    if !io::stdout().is_terminal() || !io::stdin().is_terminal() {
        return exit_with_usage_error(
            "top needs a terminal; --once prints it and ends",
            LoggingFormat::Text,
        );
    }
    let result = runtime.block_on(run_live(args));
    // The thread that reads keys is blocked in a read: do not wait for it.
    runtime.shutdown_background();
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => exit_with_failure(&why, LoggingFormat::Text),
    }
}

async fn run_once(args: &TopArgs) -> ExitCode {
    let output = match args.output {
        TopFormat::Json => fetch_json(args).await,
        TopFormat::Table => fetch_table(args).await,
    };
    match output {
        // Fails if the reader has closed the pipe.
        Ok(text) => match io::stdout().write_all(text.as_bytes()) {
            Ok(()) => ExitCode::SUCCESS,
            Err(why) => exit_with_failure(&why, LoggingFormat::Text),
        },
        Err(why) => exit_with_failure(
            &format!("{} is not reachable: {why}", args.admin),
            LoggingFormat::Text,
        ),
    }
}

async fn fetch_json(args: &TopArgs) -> Result<String, String> {
    let mut snapshot = client::fetch_snapshot(&args.admin, Some(&args.replica)).await?;
    text_table::select_lists(&mut snapshot.talkers, args.by, args.window, args.sort);
    let text = serde_json::to_string_pretty(&snapshot).map_err(|why| why.to_string())?;
    Ok(format!("{}\n", escape_json(&text)))
}

async fn fetch_table(args: &TopArgs) -> Result<String, String> {
    let mut model = TopModel::new(args.view_options());
    for n in 0..2 {
        if n > 0 {
            tokio::time::sleep(SAMPLE_INTERVAL).await;
        }
        let snapshot = client::fetch_snapshot(&args.admin, Some(&args.replica)).await?;
        model.handle_update(StatusUpdate::Snapshot(Box::new(snapshot)));
    }
    Ok(text_table::render_table(&model.view_model, &model.options))
}

async fn run_live(args: TopArgs) -> io::Result<()> {
    // Also sets a hook that restores the terminal before a panic is printed.
    let mut terminal = ratatui::try_init()?;
    let result = event_loop(&mut terminal, args).await;
    ratatui::try_restore()?;
    result
}

async fn event_loop(terminal: &mut DefaultTerminal, args: TopArgs) -> io::Result<()> {
    let address = args.admin.to_string();
    let mut model = TopModel::new(args.view_options());
    let (update_sender, mut updates) = mpsc::channel(CHANNEL_CAPACITY);
    let (key_sender, mut keys) = mpsc::channel(CHANNEL_CAPACITY);
    let chosen = watch::Sender::new(model.options.chosen_replica().to_owned());
    let updated = client::stream_updates(args.admin, chosen.subscribe(), update_sender);
    tokio::spawn(updated);
    thread::spawn(move || {
        while let Ok(event) = event::read() {
            if key_sender.blocking_send(event).is_err() {
                return;
            }
        }
    });
    let mut stop = std::pin::pin!(signals::stop_signal());
    loop {
        let mut max_offsets = ScrollOffsets::default();
        terminal.draw(|frame| max_offsets = view::draw(frame, &model, &address))?;
        model.options.clamp_scroll_offsets(max_offsets);
        tokio::select! {
            Some(update) = updates.recv() => model.handle_update(update),
            event = keys.recv() => match event {
                Some(Event::Key(key)) => {
                    if model.handle_key(key) == KeyOutcome::Quit {
                        return Ok(());
                    }
                    let replica = model.options.chosen_replica();
                    chosen.send_if_modified(|chosen| {
                        let is_other = chosen != replica;
                        replica.clone_into(chosen);
                        is_other
                    });
                }
                Some(_) => {} // a resize: drawn again
                None => return Ok(()), // the terminal was closed
            },
            () = &mut stop => return Ok(()),
        }
    }
}
