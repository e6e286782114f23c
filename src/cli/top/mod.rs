//! `weir top`: the status page in a terminal, for who sits on a bastion.
//!
//! What it knows ([`model`]) and how that looks ([`view`]) are apart from where it comes from ([`client`]) and from the
//! terminal, which is given back as it was however this ends.

pub mod client;
pub mod model;
pub mod once;
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
use ratatui::DefaultTerminal;
use ratatui::crossterm::event;
use ratatui::crossterm::event::Event;
use tokio::sync::mpsc;

use crate::cli::failure;
use crate::cli::misuse;
use crate::cli::serve;
use crate::cli::top::client::Address;
use crate::cli::top::model::Message;
use crate::cli::top::model::Model;
use crate::cli::top::model::Next;

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
        Err(why) => return failure(&why),
    };
    if args.once {
        return runtime.block_on(once(&args.admin, args.output));
    }
    if !io::stdout().is_terminal() || !io::stdin().is_terminal() {
        return misuse("top needs a terminal; --once prints it and ends");
    }
    let ended = runtime.block_on(live(args.admin));
    // Who reads keys waits for one: it is not waited for.
    runtime.shutdown_background();
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => failure(&why),
    }
}

async fn once(address: &Address, output: Output) -> ExitCode {
    let printed = match output {
        Output::Json => json(address).await,
        Output::Table => table(address).await,
    };
    match printed {
        // Fails where nobody reads it any more.
        Ok(text) => match io::stdout().write_all(text.as_bytes()) {
            Ok(()) => ExitCode::SUCCESS,
            Err(why) => failure(&why),
        },
        Err(why) => failure(&format!("{address} is not reachable: {why}")),
    }
}

async fn json(address: &Address) -> Result<String, String> {
    let snapshot = client::snapshot(address).await?;
    let text = serde_json::to_string_pretty(&snapshot).map_err(|why| why.to_string())?;
    Ok(text + "\n")
}

async fn table(address: &Address) -> Result<String, String> {
    let mut model = Model::default();
    for look in 0..2 {
        if look > 0 {
            tokio::time::sleep(BETWEEN).await;
        }
        let snapshot = client::snapshot(address).await?;
        model.heard(Message::Snapshot(Box::new(snapshot)));
    }
    Ok(once::table(&model.shown, &model.ui))
}

async fn live(address: Address) -> io::Result<()> {
    // Sets a hook as well that gives the terminal back before a panic is printed.
    let mut terminal = ratatui::try_init()?;
    let ended = watch(&mut terminal, address).await;
    ratatui::try_restore()?;
    ended
}

async fn watch(terminal: &mut DefaultTerminal, address: Address) -> io::Result<()> {
    let shown = address.to_string();
    let (tell, mut messages) = mpsc::channel(BACKLOG);
    let (press, mut keys) = mpsc::channel(BACKLOG);
    tokio::spawn(client::listen(address, tell));
    thread::spawn(move || {
        while let Ok(event) = event::read() {
            if press.blocking_send(event).is_err() {
                return;
            }
        }
    });
    let mut model = Model::default();
    let mut stop = std::pin::pin!(serve::stop());
    loop {
        terminal.draw(|frame| view::draw(frame, &model, &shown))?;
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
