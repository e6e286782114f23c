//! The protocols of systemd: state notifications, the watchdog and socket activation. The watchdog is
//! notified only while every worker and the runtime of the command serve.
//!
//! `sd_notify(3)` is a datagram of assignments to the socket that `NOTIFY_SOCKET` names. Without that
//! variable nothing is sent.
//!
//! `LISTEN_FDS` needs a descriptor by its number, which is unsafe code; `listenfd` has it.

use std::net::TcpListener;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::Arc;
use std::time::Duration;
use std::{env, io, process};

use listenfd::ListenFd;
use rustix::time::{ClockId, clock_gettime};
use tokio::time::{MissedTickBehavior, interval};
use tracing::{debug, warn};

use crate::app::HandoverParts;

/// The status of a process that serves.
pub(crate) const SERVING: &str = "serving";

/// How often the workers are looked at within the time of the watchdog. It is notified as soon as
/// all of them have worked since the last time.
const WATCHDOG_CHECKS: u32 = 4;

/// Sends states to the service manager, if there is one.
#[derive(Clone, Debug, Default)]
pub(crate) struct Notifier {
    socket: Option<Arc<UnixDatagram>>,
}

impl Notifier {
    /// The service manager of `NOTIFY_SOCKET`. An address that cannot be used is logged, and counts
    /// as none.
    #[must_use]
    pub(crate) fn from_env() -> Self {
        let socket = env::var("NOTIFY_SOCKET").ok().and_then(|address| {
            connect(&address)
                .inspect_err(|why| warn!(%why, address, "the service manager cannot be notified"))
                .ok()
        });
        Self {
            socket: socket.map(Arc::new),
        }
    }

    /// weir serves: after the start, after a reload and after a hand-over.
    pub(crate) fn ready(&self, status: &str) {
        self.send(&format!("READY=1\nSTATUS={status}"));
    }

    /// weir reads its configuration again. [`ready`](Self::ready) must follow.
    pub(crate) fn reloading(&self) {
        self.send(&format!(
            "RELOADING=1\nMONOTONIC_USEC={}\nSTATUS=reading the configuration again",
            monotonic_micros()
        ));
    }

    /// weir shuts down.
    pub(crate) fn stopping(&self, status: &str) {
        self.send(&format!("STOPPING=1\nSTATUS={status}"));
    }

    /// Another process is the main process of the service from now on.
    pub(crate) fn main_pid(&self, pid: u32) {
        self.send(&format!(
            "MAINPID={pid}\nSTATUS=process {pid} has taken over"
        ));
    }

    /// weir serves still.
    pub(crate) fn watchdog(&self) {
        self.send("WATCHDOG=1");
    }

    /// An error is logged only: the service manager acts if it expects a message.
    fn send(&self, state: &str) {
        if let Some(socket) = &self.socket
            && let Err(why) = socket.send(state.as_bytes())
        {
            debug!(%why, state, "the service manager was not notified");
        }
    }
}

fn connect(address: &str) -> io::Result<UnixDatagram> {
    let socket = UnixDatagram::unbound()?;
    // A service manager that does not read must not stop weir.
    socket.set_nonblocking(true)?;
    socket.connect_addr(&parse_address(address)?)?;
    Ok(socket)
}

/// A path, or a name of Linux' abstract namespace behind `@`.
fn parse_address(address: &str) -> io::Result<SocketAddr> {
    #[cfg(target_os = "linux")]
    if let Some(name) = address.strip_prefix('@') {
        use std::os::linux::net::SocketAddrExt;
        return SocketAddr::from_abstract_name(name);
    }
    SocketAddr::from_pathname(address)
}

fn monotonic_micros() -> i64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec * 1_000_000 + now.tv_nsec / 1000
}

/// Notifies the watchdog for as long as the runtime runs, if the service manager expects it.
pub(super) fn start_watchdog(notifier: &Notifier, parts: &HandoverParts) {
    if let Some(limit) = watchdog_timeout() {
        drop(tokio::spawn(run_watchdog(
            limit,
            notifier.clone(),
            parts.clone(),
        )));
    }
}

async fn run_watchdog(limit: Duration, notifier: Notifier, parts: HandoverParts) {
    let mut checks = interval(limit / WATCHDOG_CHECKS);
    checks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut last = parts.heartbeats();
    loop {
        checks.tick().await;
        let now = parts.heartbeats();
        if all_advanced(&last, &now) {
            notifier.watchdog();
            last = now;
        }
    }
}

fn all_advanced(last: &[u64], now: &[u64]) -> bool {
    last.iter().zip(now).all(|(last, now)| last != now)
}

/// The time within which the service manager expects [`Notifier::watchdog`] again. `None` if it
/// expects none of this process.
fn watchdog_timeout() -> Option<Duration> {
    let variable = |name| env::var(name).ok();
    parse_watchdog(
        variable("WATCHDOG_USEC").as_deref(),
        variable("WATCHDOG_PID").as_deref(),
        process::id(),
    )
}

/// A hand-over removes `WATCHDOG_PID` from the environment of the new process.
fn parse_watchdog(micros: Option<&str>, pid: Option<&str>, own_pid: u32) -> Option<Duration> {
    if pid.is_some_and(|pid| pid.parse() != Ok(own_pid)) {
        return None;
    }
    let micros: u64 = micros?.parse().ok()?;
    Some(Duration::from_micros(micros)).filter(|timeout| !timeout.is_zero())
}

/// The listening sockets that the service manager has opened, with their names
/// (`FileDescriptorName=` of the socket unit). Takes them from the environment.
///
/// # Errors
/// A descriptor is not a TCP socket.
pub(crate) fn take_listeners() -> io::Result<Vec<(String, TcpListener)>> {
    let names = env::var("LISTEN_FDNAMES").unwrap_or_default();
    let mut names = names.split(':');
    let mut descriptors = ListenFd::from_env();
    let mut listeners = Vec::new();
    for index in 0..descriptors.len() {
        let name = names.next().unwrap_or_default().to_owned();
        if let Some(listener) = descriptors.take_tcp_listener(index)? {
            listener.set_nonblocking(true)?;
            listeners.push((name, listener));
        }
    }
    Ok(listeners)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn receiver(address: &str) -> UnixDatagram {
        let address = parse_address(address).unwrap();
        let receiver = UnixDatagram::bind_addr(&address).unwrap();
        receiver
            .set_read_timeout(Some(Duration::from_secs(30)))
            .unwrap();
        receiver
    }

    fn received(receiver: &UnixDatagram) -> String {
        let mut buffer = [0; 500];
        let length = receiver.recv(&mut buffer).unwrap();
        String::from_utf8(buffer[..length].to_vec()).unwrap()
    }

    #[test]
    fn states_arrive_at_a_path_and_at_an_abstract_address() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify").to_str().unwrap().to_owned();
        for address in [path, format!("@weir-test-{}", process::id())] {
            let manager = receiver(&address);
            let notifier = Notifier {
                socket: Some(Arc::new(connect(&address).unwrap())),
            };
            notifier.ready("serving");
            notifier.main_pid(7);
            assert_eq!(received(&manager), "READY=1\nSTATUS=serving");
            assert!(received(&manager).starts_with("MAINPID=7\n"));
        }
    }

    #[test]
    fn a_reload_is_announced_with_the_time_of_the_monotonic_clock() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify").to_str().unwrap().to_owned();
        let manager = receiver(&path);
        let notifier = Notifier {
            socket: Some(Arc::new(connect(&path).unwrap())),
        };
        let before = monotonic_micros();
        notifier.reloading();
        let text = received(&manager);
        let time = text
            .lines()
            .find_map(|line| line.strip_prefix("MONOTONIC_USEC="));
        let time: i64 = time.unwrap().parse().unwrap();
        assert!((before..=monotonic_micros()).contains(&time), "{text}");
        assert!(text.starts_with("RELOADING=1\n"), "{text}");
    }

    #[test]
    fn a_watchdog_of_another_process_is_not_this_ones() {
        let of = |micros, pid| parse_watchdog(micros, pid, 7);
        assert_eq!(of(Some("3000000"), Some("7")), Some(Duration::from_secs(3)));
        assert_eq!(of(Some("3000000"), None), Some(Duration::from_secs(3)));
        for (micros, pid) in [
            (Some("3000000"), Some("8")),
            (Some("3000000"), Some("")),
            (Some("0"), None),
            (Some("soon"), None),
            (None, Some("7")),
        ] {
            assert_eq!(of(micros, pid), None, "{micros:?} {pid:?}");
        }
    }

    #[test]
    fn a_worker_that_stands_still_stops_the_watchdogs_notifications() {
        assert!(all_advanced(&[1, 7], &[2, 8]));
        assert!(!all_advanced(&[1, 7], &[2, 7]));
    }
}
