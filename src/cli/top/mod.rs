//! `weir top`: the status page in a terminal, for who sits on a bastion.
//!
//! What it knows ([`model`]), what of that is shown ([`shown`], [`ui`]) and how that looks ([`view`]) are apart from where it comes from ([`client`]) and from the
//! terminal, which is given back as it was however this ends.

pub mod client;
mod lists;
pub mod model;
pub mod once;
pub mod shown;
pub mod ui;
pub mod view;
pub mod words;

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

use crate::cli::failure;
use crate::cli::flags::LoggingFormat;
use crate::cli::misuse;
use crate::cli::serve;
use crate::cli::top::client::Address;
use crate::cli::top::model::Message;
use crate::cli::top::model::Model;
use crate::cli::top::model::Next;
use crate::cli::top::ui::Scrolled;
use crate::cli::top::ui::Ui;
use crate::observe::talkers::By;
use crate::observe::talkers::Sort;
use crate::observe::talkers::Window;

/// What has come and was not drawn yet: a second brings one.
const BACKLOG: usize = 16;

/// Time between the two looks of `--once -o table`, from which rates are made.
const BETWEEN: Duration = Duration::from_secs(1);

/// `weir top`.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Top")]
pub struct TopArgs {
    /// weir's admin address: http://HOST:PORT.
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:6480", value_parser = Address::parse)]
    admin: Address,
    /// Print it once and end.
    #[arg(long)]
    once: bool,
    /// With --once: how. The table looks twice, a second apart, for its rates.
    #[arg(short, long, value_name = "FORMAT", value_enum, default_value_t = Output::Table, requires = "once")]
    output: Output,
    /// Group talkers by this (default user); with -o json, show only this grouping.
    #[arg(long, value_name = "WHAT", value_parser = one_of(By::SHOWN, By::name))]
    by: Option<By>,
    /// Talkers of the last minutes (1m, if nothing is said). JSON has all lists, unless one is asked for.
    #[arg(long, value_name = "TIME", value_parser = one_of(Window::ALL, Window::name))]
    window: Option<Window>,
    /// Sort talkers by this (default requests).
    #[arg(long, value_name = "MEASURE", value_parser = one_of(Sort::SHOWN, Sort::name))]
    sort: Option<Sort>,
}

/// One of these by its name, as /debug/top_talkers takes it.
fn one_of<T: Copy + Send + Sync + 'static, const N: usize>(
    all: [T; N],
    name: fn(T) -> &'static str,
) -> impl TypedValueParser<Value = T> {
    PossibleValuesParser::new(all.map(name)).try_map(move |text| {
        let one = all.into_iter().find(|one| name(*one) == text);
        one.ok_or("there is no such thing")
    })
}

impl TopArgs {
    fn ui(&self) -> Ui {
        Ui {
            by: self.by.unwrap_or_default(),
            window: self.window.unwrap_or_default(),
            talkers_by: self.sort.unwrap_or_default(),
            ..Ui::default()
        }
    }
}

/// How it is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Output {
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
        Err(why) => return failure(&why, LoggingFormat::Text),
    };
    if args.once {
        return runtime.block_on(once(&args));
    }
    if !io::stdout().is_terminal() || !io::stdin().is_terminal() {
        return misuse(
            "top needs a terminal; --once prints it and ends",
            LoggingFormat::Text,
        );
    }
    let ended = runtime.block_on(live(args));
    // Who reads keys waits for one: it is not waited for.
    runtime.shutdown_background();
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => failure(&why, LoggingFormat::Text),
    }
}

async fn once(args: &TopArgs) -> ExitCode {
    let printed = match args.output {
        Output::Json => json(args).await,
        Output::Table => table(args).await,
    };
    match printed {
        // Fails where nobody reads it any more.
        Ok(text) => match io::stdout().write_all(text.as_bytes()) {
            Ok(()) => ExitCode::SUCCESS,
            Err(why) => failure(&why, LoggingFormat::Text),
        },
        Err(why) => failure(
            &format!("{} is not reachable: {why}", args.admin),
            LoggingFormat::Text,
        ),
    }
}

async fn json(args: &TopArgs) -> Result<String, String> {
    let mut snapshot = client::snapshot(&args.admin).await?;
    once::choose(&mut snapshot.talkers, args.by, args.window, args.sort);
    let text = serde_json::to_string_pretty(&snapshot).map_err(|why| why.to_string())?;
    Ok(text + "\n")
}

async fn table(args: &TopArgs) -> Result<String, String> {
    let mut model = Model::new(args.ui());
    for look in 0..2 {
        if look > 0 {
            tokio::time::sleep(BETWEEN).await;
        }
        let snapshot = client::snapshot(&args.admin).await?;
        model.heard(Message::Snapshot(Box::new(snapshot)));
    }
    Ok(once::table(&model.shown, &model.ui))
}

async fn live(args: TopArgs) -> io::Result<()> {
    // Sets a hook as well that gives the terminal back before a panic is printed.
    let mut terminal = ratatui::try_init()?;
    let ended = watch(&mut terminal, args).await;
    ratatui::try_restore()?;
    ended
}

async fn watch(terminal: &mut DefaultTerminal, args: TopArgs) -> io::Result<()> {
    let shown = args.admin.to_string();
    let mut model = Model::new(args.ui());
    let (tell, mut messages) = mpsc::channel(BACKLOG);
    let (press, mut keys) = mpsc::channel(BACKLOG);
    tokio::spawn(client::listen(args.admin, tell));
    thread::spawn(move || {
        while let Ok(event) = event::read() {
            if press.blocking_send(event).is_err() {
                return;
            }
        }
    });
    let mut stop = std::pin::pin!(serve::stop());
    loop {
        let mut most = Scrolled::default();
        terminal.draw(|frame| most = view::draw(frame, &model, &shown))?;
        model.ui.bound(most);
        tokio::select! {
            Some(message) = messages.recv() => model.heard(message),
            event = keys.recv() => match event {
                Some(Event::Key(key)) => {
                    if model.key(key) == Next::Quit {
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
