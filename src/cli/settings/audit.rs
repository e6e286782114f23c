//! The audit log: its policy, and where it goes.

use std::path::Path;
use std::path::PathBuf;
use std::time::Duration;

use super::Faults;
use crate::cli::flags::TellingArgs;
use crate::config::Telling;
use crate::document;
use crate::observe::audit;
use crate::observe::audit::output::LogFile;
use crate::observe::audit::policy::Policy;
use crate::observe::log_lines::DroppedLines;
use crate::observe::spans;

const PATH: &str = "audit-log-path";
const POLICY: &str = "audit-policy-file";

/// As lumberjack counts.
const MEGABYTE: u64 = 1 << 20;
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

impl Faults {
    pub(super) fn telling(
        &mut self,
        args: TellingArgs,
        spans: Option<spans::config::Config>,
    ) -> Telling {
        let TellingArgs {
            audit_log_path,
            audit_policy_file,
            audit_log_maxage,
            audit_log_maxbackup,
            audit_log_maxsize,
            explain_responses,
        } = args;
        if audit_log_path.is_none() && audit_policy_file.is_some() {
            self.add(
                POLICY,
                format!("only together with --{PATH}: where the log is written"),
            );
        }
        let policy = match audit_policy_file {
            None => Some(Policy::everything()),
            Some(file) => self.audit_policy(&file),
        };
        let file = |path: PathBuf| {
            (path != Path::new("-")).then(|| LogFile {
                path,
                max_size: u64::from(audit_log_maxsize) * MEGABYTE,
                max_backups: usize::try_from(audit_log_maxbackup).unwrap_or(usize::MAX),
                max_age: DAY * audit_log_maxage,
            })
        };
        let audit = audit_log_path.map(file).zip(policy);
        Telling {
            audit: audit.map(|(file, policy)| audit::Config { policy, file }),
            explain: explain_responses,
            spans,
            dropped_lines: DroppedLines::default(), // `logging` knows
        }
    }

    fn audit_policy(&mut self, file: &Path) -> Option<Policy> {
        let text = String::from_utf8_lossy(&self.read(POLICY, file)?).into_owned();
        let mut faults = document::Faults::default();
        let policy = Policy::read(&file.display().to_string(), &text, &mut faults);
        self.take(POLICY, &faults).then_some(policy)?
    }
}
