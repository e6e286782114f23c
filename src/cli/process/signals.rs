//! Signals, and the open-file limit of the process.

use std::future::Future;
use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing::{info, warn};

/// Completes on the first SIGTERM or SIGINT after the call.
pub(crate) fn stop_signal() -> impl Future<Output = ()> {
    nth_stop_signal(1)
}

/// Completes on the second SIGTERM or SIGINT after the call.
pub(crate) fn second_stop_signal() -> impl Future<Output = ()> {
    nth_stop_signal(2)
}

/// Logs SIGUSR1 from now on and otherwise ignores it. Its default action would end the process.
///
/// Must be called within a runtime. The signal is logged as long as it runs.
pub(crate) fn ignore_user_signal() {
    ignore("SIGUSR1", SignalKind::user_defined1());
}

/// Logs SIGUSR2 as [`ignore_user_signal`] does SIGUSR1.
#[cfg(feature = "playground")]
pub(crate) fn ignore_handover() {
    ignore("SIGUSR2", SignalKind::user_defined2());
}

/// Logs SIGHUP as [`ignore_user_signal`] does SIGUSR1.
#[cfg(feature = "playground")]
pub(crate) fn ignore_hangup() {
    ignore("SIGHUP", SignalKind::hangup());
}

fn ignore(name: &'static str, kind: SignalKind) {
    match signal(kind) {
        Ok(mut signals) => drop(tokio::spawn(async move {
            while signals.recv().await.is_some() {
                warn!(signal = name, "signal ignored");
            }
        })),
        Err(why) => warn!(signal = name, %why, "the signal cannot be watched: it ends weir"),
    }
}

/// The signals of one kind from the call on.
#[derive(Debug)]
pub(crate) struct SignalStream(Option<Signal>);

impl SignalStream {
    /// SIGHUP: reads the configuration again. Must be called within a runtime.
    pub(crate) fn hangups() -> Self {
        Self::start("SIGHUP", SignalKind::hangup())
    }

    /// SIGUSR2: hands over to a new process. Must be called within a runtime.
    pub(crate) fn handovers() -> Self {
        Self::start("SIGUSR2", SignalKind::user_defined2())
    }

    fn start(name: &'static str, kind: SignalKind) -> Self {
        let signals = signal(kind);
        let signals = signals.inspect_err(
            |why| warn!(signal = name, %why, "the signal cannot be watched: it ends weir"),
        );
        Self(signals.ok())
    }

    /// Waits for the next one.
    ///
    /// # Cancel safety
    /// No signal is lost.
    pub(crate) async fn next(&mut self) {
        let received = match &mut self.0 {
            Some(signals) => signals.recv().await,
            None => None,
        };
        if received.is_none() {
            std::future::pending().await
        }
    }
}

/// Counts signals from the call on, not from the first poll: no signal is missed.
fn nth_stop_signal(count: usize) -> impl Future<Output = ()> {
    let streams = (
        signal(SignalKind::terminate()),
        signal(SignalKind::interrupt()),
    );
    async move {
        let (Ok(mut terminate), Ok(mut interrupt)) = streams else {
            warn!("signals cannot be watched: only SIGKILL ends this process");
            return std::future::pending().await;
        };
        for _ in 0..count {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
        }
    }
}

/// Raises the open-file limit to its hard limit. Each client connection is an open file, and the
/// usual soft limit of 1024 is too low for a proxy.
///
/// # Errors
/// The limit stays as it is.
pub(super) fn raise_open_file_limit() -> io::Result<()> {
    let limit = rlimit::increase_nofile_limit(u64::MAX)?;
    info!(limit, "open-file limit raised as far as allowed");
    Ok(())
}
