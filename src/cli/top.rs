//! `weir top`: the status page in a terminal, for example on a bastion host.
//!
//! [`weir_top`] has what is shown; here it meets the [admin listener](crate::cli::admin_client), the keys,
//! and the control socket of this machine, which a dialog's commands go to. The terminal is restored
//! however the command ends.

use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;
use std::{io, thread};

use clap::Args;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event;
use ratatui::crossterm::event::Event;
use tokio::sync::{mpsc, watch};

use crate::cli::admin_client;
use crate::cli::admin_client::AdminUrl;
use crate::cli::ctl;
use crate::cli::flags::LoggingFormat;
use crate::cli::process::exit::{exit_with_failure, exit_with_usage_error};
use crate::cli::process::signals;
use crate::flag_values::name_parser;
use weir_agreement::message::check_name;
use weir_status::replica_view::ALL_REPLICAS;
use weir_talkers::{Dimension, UsageMeasure, Window};
use weir_top::model::{KeyOutcome, TopModel};
use weir_top::view;
use weir_top::view_options::{ScrollOffsets, ViewOptions};

/// Updates or key events that are not handled yet. weir sends one update a second.
const CHANNEL_CAPACITY: usize = 16;

/// What `weir top` and `weir status` show.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "View")]
pub(crate) struct ViewArgs {
    /// weir's admin address: http://HOST:PORT, or https://HOST:PORT.
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:6480", value_parser = AdminUrl::parse)]
    pub(crate) admin: AdminUrl,
    /// How it is reached over TLS.
    #[command(flatten)]
    pub(crate) access: admin_client::AdminAccessArgs,
    /// Group talkers by this (default user); with -o json, show only this grouping.
    #[arg(long, value_name = "WHAT", value_parser = name_parser(Dimension::DISPLAY_ORDER, Dimension::name))]
    pub(crate) by: Option<Dimension>,
    /// Talkers of the last minutes (1m, if nothing is said). JSON has all lists, unless one is asked for.
    #[arg(long, value_name = "TIME", value_parser = name_parser(Window::ALL, Window::name))]
    pub(crate) window: Option<Window>,
    /// Sort talkers by this (default requests).
    #[arg(long, value_name = "MEASURE", value_parser = name_parser(UsageMeasure::DISPLAY_ORDER, UsageMeasure::name))]
    pub(crate) sort: Option<UsageMeasure>,
    /// Where replicas have connections to each other: show one of them, by its name, or all of them together (all).
    #[arg(long, value_name = "NAME", default_value = ALL_REPLICAS, value_parser = parse_replica)]
    pub(crate) replica: String,
}

/// `weir top`.
#[derive(Args, Clone, Debug)]
pub(crate) struct TopArgs {
    #[command(flatten)]
    view: ViewArgs,
    /// weir's --control-socket, for the keys that set and end levers; by default the first of its default paths at which a weir answers.
    #[arg(long, value_name = "FILE")]
    control_socket: Option<PathBuf>,
}

fn parse_replica(text: &str) -> Result<String, String> {
    check_name(text).map(|()| text.to_owned())
}

impl ViewArgs {
    /// The same as choices of the view.
    #[must_use]
    pub(crate) fn options(&self) -> ViewOptions {
        ViewOptions {
            by: self.by.unwrap_or_default(),
            window: self.window.unwrap_or_default(),
            talker_sort: self.sort.unwrap_or_default(),
            replica: Some(self.replica.clone()).filter(|name| name != ALL_REPLICAS),
            ..ViewOptions::default()
        }
    }
}

/// Runs the command until the user quits.
pub(super) fn run(args: TopArgs) -> ExitCode {
    let runtime = match tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
    {
        Ok(runtime) => runtime,
        Err(why) => return exit_with_failure(&why, LoggingFormat::Text),
    };
    if !io::stdout().is_terminal() || !io::stdin().is_terminal() {
        return exit_with_usage_error(
            "top needs a terminal; weir status prints it and ends",
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

async fn run_live(args: TopArgs) -> io::Result<()> {
    // Also sets a hook that restores the terminal before a panic is printed.
    let mut terminal = ratatui::try_init()?;
    let result = event_loop(&mut terminal, args).await;
    ratatui::try_restore()?;
    result
}

async fn event_loop(terminal: &mut DefaultTerminal, args: TopArgs) -> io::Result<()> {
    let TopArgs {
        view: args,
        control_socket,
    } = args;
    let admin = args.access.resolve(&args.admin);
    let admin = admin.map_err(io::Error::other)?;
    let address = admin.to_string();
    let (answer_sender, mut answers) = mpsc::channel(CHANNEL_CAPACITY);
    let mut model = TopModel::new(args.options());
    let (update_sender, mut updates) = mpsc::channel(CHANNEL_CAPACITY);
    let (key_sender, mut keys) = mpsc::channel(CHANNEL_CAPACITY);
    let chosen = watch::Sender::new(model.options.chosen_replica().to_owned());
    let updated = admin_client::stream_updates(admin, chosen.subscribe(), update_sender);
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
            Some(answer) = answers.recv() => model.handle_answer(answer),
            event = keys.recv() => match event {
                Some(Event::Key(key)) => {
                    match model.handle_key(key) {
                        KeyOutcome::Quit => return Ok(()),
                        KeyOutcome::Redraw => {}
                        KeyOutcome::Send(arguments) => {
                            let (socket, sender) = (control_socket.clone(), answer_sender.clone());
                            tokio::task::spawn_blocking(move || {
                                let answer = ctl::run_line(socket, arguments);
                                let _ = sender.blocking_send(answer); // top may have ended
                            });
                        }
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
