//! Faults of the playground's API server, for rehearsals: `--fault`, and a file for what no schedule
//! can know. docs/failures.md says what each of them does.

use std::path::Path;
use std::time::Duration;
use std::{fs, io};

use tokio::time::{Instant, sleep_until};
use weir_playground::{Fault, PlaygroundServer};

use crate::flag_values::parse_duration;
use weir_base::clock::Clock;

/// The file in the playground's folder that puts a fault in force. It has one word.
pub(super) const FAULT_FILE: &str = "fault";

/// How often the file is read.
const READ_INTERVAL: Duration = Duration::from_millis(50);

/// When which fault begins, in the order of their times.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct FaultSchedule(Vec<FaultChange>);

/// From a time after the start on, a fault or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FaultChange {
    after: Duration,
    fault: Option<Fault>,
}

/// Parses `30s=hang,40s=none`. The error names everything that is wrong. Pure.
pub(crate) fn parse_schedule(text: &str) -> Result<FaultSchedule, String> {
    let mut changes: Vec<FaultChange> = Vec::new();
    let mut errors = Vec::new();
    for item in text.split(',') {
        let Some((time, name)) = item.split_once('=') else {
            errors.push(format!("{item:?}: give TIME=KIND, as 30s=hang"));
            continue;
        };
        let after = parse_duration(time).map_err(|why| format!("the time {time:?}: {why}"));
        let fault =
            Fault::parse(name).map_err(|names| format!("{name:?} is no fault; those are {names}"));
        match (after, fault) {
            (Ok(after), Ok(fault)) => {
                if let Some(before) = changes.iter().find(|before| before.after >= after) {
                    let before = before.after;
                    errors.push(format!(
                        "{item:?} is not after {before:?}: give the times in order"
                    ));
                }
                changes.push(FaultChange { after, fault });
            }
            (after, fault) => errors.extend(after.err().into_iter().chain(fault.err())),
        }
    }
    match errors.as_slice() {
        [] => Ok(FaultSchedule(changes)),
        errors => Err(errors.join("; ")),
    }
}

/// Puts faults in force as the schedule and the file say. Never ends.
///
/// # Cancel safety
/// The fault in force stays.
pub(super) async fn follow(server: &PlaygroundServer, schedule: &FaultSchedule, folder: &Path) {
    tokio::join!(
        follow_schedule(server, schedule),
        follow_file(server, folder)
    );
}

async fn follow_schedule(server: &PlaygroundServer, FaultSchedule(changes): &FaultSchedule) {
    let start = Instant::from_std(Clock.now());
    for change in changes {
        sleep_until(start + change.after).await;
        begin(server, change.fault);
    }
}

async fn follow_file(server: &PlaygroundServer, folder: &Path) {
    let file = folder.join(FAULT_FILE);
    let mut last = String::new();
    loop {
        let text = match fs::read_to_string(&file) {
            Ok(text) => text,
            Err(why) if why.kind() == io::ErrorKind::NotFound => String::new(),
            Err(why) => format!("{why}"),
        };
        // A file that is being written may be empty.
        if text != last && !text.trim().is_empty() {
            match Fault::parse(text.trim()) {
                Ok(fault) => begin(server, fault),
                Err(names) => eprintln!(
                    "{}: {:?} is no fault; those are {names}",
                    file.display(),
                    text.trim()
                ),
            }
        }
        last = text;
        tokio::time::sleep(READ_INTERVAL).await;
    }
}

fn begin(server: &PlaygroundServer, fault: Option<Fault>) {
    server.set_fault(fault);
    println!("fault: {}", fault.map_or("none", Fault::name));
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use clap::CommandFactory;
    use weir_playground::Fault;

    use super::{FaultChange, FaultSchedule, parse_schedule};
    use crate::cli::commands::Cli;

    #[test]
    fn a_schedule_has_faults_and_their_ends_in_the_order_of_their_times() {
        let change = |seconds, fault| FaultChange {
            after: Duration::from_secs(seconds),
            fault,
        };
        assert_eq!(
            parse_schedule("0s=429,1m=slow-etcd,90s=none"),
            Ok(FaultSchedule(vec![
                change(0, Some(Fault::TooManyRequests)),
                change(60, Some(Fault::SlowEtcd)),
                change(90, None),
            ]))
        );
    }

    #[test]
    fn everything_that_is_wrong_with_a_schedule_is_told_at_once_with_what_would_be_right() {
        let errors = parse_schedule("30=hang,20s=refuse,10s=none,hang,40s=hangs").unwrap_err();
        for part in [
            "the time \"30\": ",
            "\"10s=none\" is not after 20s: give the times in order",
            "\"hang\": give TIME=KIND, as 30s=hang",
            "\"hangs\" is no fault; those are none, 429, 500, ca-changed, ",
        ] {
            assert!(errors.contains(part), "{part}: {errors}");
        }
    }

    #[test]
    fn the_help_names_every_fault() {
        let mut command = Cli::command();
        let playground = command.find_subcommand_mut("playground").unwrap();
        let help = playground.render_long_help().to_string();
        let words: Vec<_> = help
            .split(|c: char| !(c.is_alphanumeric() || c == '-'))
            .collect();
        for fault in Fault::ALL {
            assert!(words.contains(&fault.name()), "{}", fault.name());
        }
    }
}
