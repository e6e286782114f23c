//! Replaces this process by a new one without closing the port (SIGUSR2).
//!
//! The new process is a child: the same command line with the program and the files as they are now.
//! A child that ends, or that is not ready in time, changes nothing.

use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::Stdio;
use std::time::Duration;
use std::{env, io, process};

use tokio::process::{Child, Command};
use tokio::time::timeout;
use tracing::{error, info, warn};

use crate::app::HandoverParts;
use crate::cli::process::exit::CommandError;
use crate::cli::process::signals::SignalStream;
use crate::cli::serve::systemd::Notifier;
use crate::handover::channel::{HANDOVER_VARIABLE, HandoverChannel, ReceivedOffer};
use crate::handover::listeners::InheritedListeners;
use crate::handover::message::{HeldSeats, Message};

/// How long a new process may take until it is prepared: it reads its files, may run a credential
/// plugin, and waits some seconds for the API server.
const PREPARE_TIMEOUT: Duration = Duration::from_secs(60);

/// How long each later message may take.
const MESSAGE_TIMEOUT: Duration = Duration::from_secs(10);

/// How often the new process learns what the old one still holds.
const HELD_INTERVAL: Duration = Duration::from_millis(100);

/// How long a process whose channel has ended may take to exit, so that the log has its status.
const EXIT_TIMEOUT: Duration = Duration::from_secs(5);

/// Waits for SIGUSR2 and hands over.
pub(super) struct HandoverTask {
    signals: SignalStream,
    parts: HandoverParts,
    notifier: Notifier,
}

/// A process that has been started and does not serve yet. Dropping it kills the process.
struct StartedProcess {
    child: Child,
    pid: u32,
    has_taken_over: bool,
}

impl Drop for StartedProcess {
    fn drop(&mut self) {
        if !self.has_taken_over {
            let _ = self.child.start_kill(); // it has ended otherwise
        }
    }
}

impl HandoverTask {
    pub(super) const fn new(
        signals: SignalStream,
        parts: HandoverParts,
        notifier: Notifier,
    ) -> Self {
        Self {
            signals,
            parts,
            notifier,
        }
    }

    /// Completes when a new process has taken over. It then learns what this one still holds, for as
    /// long as the runtime runs.
    ///
    /// # Cancel safety
    /// A new process that has not taken over is killed.
    pub(super) async fn run(mut self) {
        loop {
            self.signals.next().await;
            match self.hand_over().await {
                Ok(channel) => {
                    drop(tokio::spawn(report_held(channel, self.parts)));
                    return;
                }
                Err(why) => {
                    self.parts.keep();
                    self.parts.metrics.record_failure();
                    error!("no hand-over: {why}; this process keeps serving");
                    self.notifier
                        .ready("serving; a hand-over has failed: see the log");
                }
            }
        }
    }

    async fn hand_over(&self) -> Result<HandoverChannel, String> {
        if process::id() == 1 {
            return Err("this is process 1, and a new process would end with it".to_owned());
        }
        let offered = self.parts.offer();
        let (mut channel, input) = offered.map_err(|why| format!("no socket for it: {why}"))?;
        let mut started = start_process(input)?;
        info!(
            pid = started.pid,
            "a new process starts; it takes over once it serves"
        );
        let exchanged = tokio::select! {
            exchanged = exchange(&mut channel, &self.parts) => exchanged,
            status = started.child.wait() => Err(ended(status)),
        };
        if let Err(why) = exchanged {
            let status = timeout(EXIT_TIMEOUT, started.child.wait()).await;
            return Err(status.map_or(why, ended));
        }
        started.has_taken_over = true;
        self.notifier.main_pid(started.pid);
        info!(pid = started.pid, "the new process serves");
        if let Err(why) = channel.send(&Message::Main).await {
            warn!(%why, "the new process does not listen to this one");
        }
        Ok(channel)
    }
}

fn ended(status: io::Result<process::ExitStatus>) -> String {
    match status {
        Ok(status) => format!("the new process ended before it served ({status}), see above"),
        Err(why) => format!("the new process cannot be followed: {why}"),
    }
}

/// Starts the program again, by the name that it was started by: that file may be a new one.
fn start_process(input: UnixStream) -> Result<StartedProcess, String> {
    let mut arguments = env::args_os();
    let program = arguments.next().unwrap_or_else(|| OsString::from("weir"));
    let child = Command::new(&program)
        .args(arguments)
        .env(HANDOVER_VARIABLE, "stdin")
        // These are about this process.
        .env_remove("WATCHDOG_PID")
        .env_remove("LISTEN_FDNAMES")
        .stdin(Stdio::from(OwnedFd::from(input)))
        .spawn()
        .map_err(|why| format!("{} cannot be started: {why}", program.display()))?;
    let pid = child.id().unwrap_or_default();
    Ok(StartedProcess {
        child,
        pid,
        has_taken_over: false,
    })
}

/// Leads the new process until it serves.
async fn exchange(channel: &mut HandoverChannel, parts: &HandoverParts) -> Result<(), String> {
    expect(channel, &Message::Prepared, PREPARE_TIMEOUT).await?;
    for message in [parts.save_state(), Message::Held(parts.held())] {
        let sent = timeout(MESSAGE_TIMEOUT, channel.send(&message)).await;
        let sent = sent.map_err(|_| "the new process does not take the state over".to_owned())?;
        sent.map_err(|why| format!("the state cannot be handed over: {why}"))?;
    }
    expect(channel, &Message::Serving, MESSAGE_TIMEOUT).await
}

async fn expect(
    channel: &mut HandoverChannel,
    expected: &Message,
    limit: Duration,
) -> Result<(), String> {
    let received = timeout(limit, channel.receive()).await;
    let received = received.map_err(|_| {
        let seconds = limit.as_secs();
        format!("the new process did not answer within {seconds} s, and is killed")
    })?;
    match received {
        Ok(message) if message == *expected => Ok(()),
        Ok(message) => Err(format!("the new process answered {message:?}")),
        Err(why) => Err(format!("the new process does not answer: {why}")),
    }
}

/// Tells the new process what this one still holds, until either ends.
async fn report_held(mut channel: HandoverChannel, parts: HandoverParts) {
    let mut interval = tokio::time::interval(HELD_INTERVAL);
    let mut last = None;
    loop {
        interval.tick().await;
        let held = parts.held();
        if last.as_ref() == Some(&held) {
            continue;
        }
        if channel.send(&Message::Held(held.clone())).await.is_err() {
            return;
        }
        last = Some(held);
    }
}

/// Leaves to the old process what it holds, until it ends.
async fn follow_held(mut channel: HandoverChannel, parts: HandoverParts) {
    while let Ok(message) = channel.receive().await {
        if let Message::Held(held) = message {
            parts.reserve(held);
        }
    }
    parts.reserve(HeldSeats::default());
    info!("the old process has ended");
}

/// The process that this one takes over from.
pub(super) struct Predecessor(HandoverChannel);

impl Predecessor {
    /// The sockets of an offer, and its process. Must be called within a runtime.
    ///
    /// # Errors
    /// The runtime cannot register the channel.
    pub(super) fn new(offer: ReceivedOffer) -> io::Result<(InheritedListeners, Self)> {
        let (listeners, channel) = offer.split()?;
        Ok((listeners, Self(channel)))
    }

    /// Takes over the state of the old process, if there is one, once this one is ready.
    ///
    /// # Errors
    /// The old process has ended or given up.
    pub(super) async fn take_over(
        predecessor: Option<Self>,
        parts: &HandoverParts,
    ) -> Result<Option<Self>, CommandError> {
        let Some(Self(mut channel)) = predecessor else {
            return Ok(None);
        };
        parts.wait_until_ready().await;
        let received = timeout(MESSAGE_TIMEOUT, async {
            channel.send(&Message::Prepared).await?;
            loop {
                match channel.receive().await? {
                    Message::State { version, state } => parts.restore_state(version, state),
                    Message::Held(held) => {
                        parts.reserve(held);
                        return Ok::<_, io::Error>(());
                    }
                    Message::Prepared | Message::Serving | Message::Main | Message::Unknown => {}
                }
            }
        });
        let why = |why: String| CommandError::Startup(format!("no hand-over: {why}"));
        let received = received.await.map_err(|late| why(late.to_string()))?;
        received.map_err(|gone| why(format!("the old process has gone: {gone}")))?;
        Ok(Some(Self(channel)))
    }

    /// Tells the old process that this one serves. Completes when the service manager follows this
    /// process.
    pub(super) async fn confirm(predecessor: Option<Self>, parts: &HandoverParts) {
        let Some(Self(mut channel)) = predecessor else {
            return;
        };
        let confirmed = async {
            channel.send(&Message::Serving).await?;
            while channel.receive().await? != Message::Main {}
            Ok::<_, io::Error>(())
        };
        match timeout(MESSAGE_TIMEOUT, confirmed).await {
            Ok(Ok(())) => info!("this process has taken over"),
            Ok(Err(why)) => warn!(%why, "the old process has ended early"),
            Err(_) => warn!("the old process does not answer"),
        }
        parts.metrics.record_success(); // it serves, whatever the old one says
        drop(tokio::spawn(follow_held(channel, parts.clone())));
    }
}
