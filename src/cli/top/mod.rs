//! `weir top`: the status page in a terminal, for who sits on a bastion.
//!
//! What it knows ([`model`]), what of that is shown ([`view_model`], [`view_options`]) and how that looks ([`view`]) are apart from where it comes from ([`client`]) and from the
//! terminal, which is given back as it was however this ends.

pub mod client;
pub mod format;
pub mod model;
mod panels;
pub mod text_table;
pub mod view;
pub mod view_model;
pub mod view_options;

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

use crate::cli::exit_with_failure;
use crate::cli::exit_with_usage_error;
use crate::cli::flags::LoggingFormat;
use crate::cli::serve;
use crate::cli::top::client::AdminUrl;
use crate::cli::top::model::KeyOutcome;
use crate::cli::top::model::StatusUpdate;
use crate::cli::top::model::TopModel;
use crate::cli::top::view_options::ScrollOffsets;
use crate::cli::top::view_options::ViewOptions;
use crate::observe::top_talkers::Dimension;
use crate::observe::top_talkers::UsageMeasure;
use crate::observe::top_talkers::Window;

/// What has come and was not drawn yet: a second brings one.
const CHANNEL_CAPACITY: usize = 16;

/// Time between the two looks of `--once -o table`, from which rates are made.
const SAMPLE_INTERVAL: Duration = Duration::from_secs(1);

/// `weir top`.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Top")]
pub struct TopArgs {
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
}

/// One of these by its name, as /debug/top_talkers takes it.
fn name_parser<T: Copy + Send + Sync + 'static, const N: usize>(
    all: [T; N],
    name: fn(T) -> &'static str,
) -> impl TypedValueParser<Value = T> {
    PossibleValuesParser::new(all.map(name)).try_map(move |text| {
        let one = all.into_iter().find(|one| name(*one) == text);
        one.ok_or("there is no such thing")
    })
}

impl TopArgs {
    fn view_options(&self) -> ViewOptions {
        ViewOptions {
            by: self.by.unwrap_or_default(),
            window: self.window.unwrap_or_default(),
            talker_sort: self.sort.unwrap_or_default(),
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

/// Runs the command.
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
    let ended = runtime.block_on(run_live(args));
    // Who reads keys waits for one: it is not waited for.
    runtime.shutdown_background();
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => exit_with_failure(&why, LoggingFormat::Text),
    }
}

async fn run_once(args: &TopArgs) -> ExitCode {
    let printed = match args.output {
        TopFormat::Json => fetch_json(args).await,
        TopFormat::Table => fetch_table(args).await,
    };
    match printed {
        // Fails where nobody reads it any more.
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
    let mut snapshot = client::fetch_snapshot(&args.admin).await?;
    text_table::select_lists(&mut snapshot.talkers, args.by, args.window, args.sort);
    let text = serde_json::to_string_pretty(&snapshot).map_err(|why| why.to_string())?;
    Ok(text + "\n")
}

async fn fetch_table(args: &TopArgs) -> Result<String, String> {
    let mut model = TopModel::new(args.view_options());
    for look in 0..2 {
        if look > 0 {
            tokio::time::sleep(SAMPLE_INTERVAL).await;
        }
        let snapshot = client::fetch_snapshot(&args.admin).await?;
        model.handle_update(StatusUpdate::Snapshot(Box::new(snapshot)));
    }
    Ok(text_table::render_table(&model.view_model, &model.options))
}

async fn run_live(args: TopArgs) -> io::Result<()> {
    // Sets a hook as well that gives the terminal back before a panic is printed.
    let mut terminal = ratatui::try_init()?;
    let ended = event_loop(&mut terminal, args).await;
    ratatui::try_restore()?;
    ended
}

async fn event_loop(terminal: &mut DefaultTerminal, args: TopArgs) -> io::Result<()> {
    let shown = args.admin.to_string();
    let mut model = TopModel::new(args.view_options());
    let (tell, mut messages) = mpsc::channel(CHANNEL_CAPACITY);
    let (press, mut keys) = mpsc::channel(CHANNEL_CAPACITY);
    tokio::spawn(client::stream_updates(args.admin, tell));
    thread::spawn(move || {
        while let Ok(event) = event::read() {
            if press.blocking_send(event).is_err() {
                return;
            }
        }
    });
    let mut stop = std::pin::pin!(serve::stop_signal());
    loop {
        let mut most = ScrollOffsets::default();
        terminal.draw(|frame| most = view::draw(frame, &model, &shown))?;
        model.options.clamp_scroll_offsets(most);
        tokio::select! {
            Some(message) = messages.recv() => model.handle_update(message),
            event = keys.recv() => match event {
                Some(Event::Key(key)) => {
                    if model.handle_key(key) == KeyOutcome::Quit {
                        return Ok(());
                    }
                }
                Some(_) => {} // another size: it is drawn anew
                None => return Ok(()), // the terminal has gone
            },
            () = &mut stop => return Ok(()),
        }
    }
}
