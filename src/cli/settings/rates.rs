//! The files of EventRateLimit, and `clientLimits` of the `--config` file.

use std::path::Path;

use super::Faults;
use crate::cli::config_file::CLIENT_LIMITS;
use crate::cli::flags::EventGroups;
use crate::cli::flags::LimitArgs;
use crate::document;
use crate::document::Node;
use crate::limits::clients;
use crate::limits::clients::config::Rule;
use crate::limits::events::Groups;
use crate::limits::events::config;
use crate::limits::events::config::Limit;
use crate::limits::events::config::Source;
use crate::limits::events::enforce;
use crate::limits::rates;

const ADMISSION: &str = "admission-control-config-file";
const EVENTS: &str = "event-rate-limit-config";

impl Faults {
    pub(super) fn rates(
        &mut self,
        limits: &LimitArgs,
        file: Option<&Path>,
    ) -> Option<rates::Config> {
        let events = match (
            &limits.admission_control_config_file,
            &limits.event_rate_limit_config,
        ) {
            (None, None) => Some(None),
            (Some(file), None) => self.admission(file).map(Some),
            (None, Some(file)) => self.events(EVENTS, file).map(Some),
            (Some(_), Some(_)) => {
                let what =
                    format!("not together with --{ADMISSION}: each names the limits of events");
                self.add(EVENTS, what);
                None
            }
        };
        let clients = match file {
            Some(file) => self.clients(file),
            None => Some(Vec::new()),
        };
        let enforced = |events| enforce::Config {
            limits: events,
            groups: match limits.event_rate_limit_groups {
                EventGroups::All => Groups::All,
                EventGroups::Core => Groups::Core,
            },
            retry_after: limits.event_rate_limit_retry_after,
        };
        Some(rates::Config {
            events: events?.map(enforced),
            clients: clients?,
        })
    }

    fn text(&mut self, flag: &str, file: &Path) -> Option<(String, String)> {
        let text = String::from_utf8_lossy(&self.read(flag, file)?).into_owned();
        Some((file.display().to_string(), text))
    }

    fn events(&mut self, flag: &str, file: &Path) -> Option<Vec<Limit>> {
        let (file, text) = self.text(flag, file)?;
        let mut faults = document::Faults::default();
        let limits = config::configuration(&file, &text, &mut faults);
        self.take(flag, &faults).then_some(limits)?
    }

    fn admission(&mut self, file: &Path) -> Option<Vec<Limit>> {
        let (name, text) = self.text(ADMISSION, file)?;
        let mut faults = document::Faults::default();
        let source = config::admission_configuration(&name, &text, &mut faults);
        let inline = match &source {
            Some(Source::Inline(node, path)) => config::limits(node, path, &mut faults),
            Some(Source::Path(_)) | None => None,
        };
        if !self.take(ADMISSION, &faults) {
            return None;
        }
        match source? {
            Source::Inline(..) => inline,
            // Relative to the file that names it, as upstream has it.
            Source::Path(path) => {
                let folder = file.parent().unwrap_or_else(|| Path::new(""));
                self.events(ADMISSION, &folder.join(path))
            }
        }
    }

    /// The file was read for the flags already, and what is wrong with it as a whole was told then.
    fn clients(&mut self, file: &Path) -> Option<Vec<Rule>> {
        let (name, text) = self.text("config", file)?;
        let mut faults = document::Faults::default();
        let documents = document::parse_all(&name, &text, &mut faults);
        let given = documents
            .first()
            .and_then(|first| first.field(CLIENT_LIMITS));
        let Some(given) = given.filter(|given| !Node::is_null(given)) else {
            return Some(Vec::new());
        };
        let rules = clients::config::rules(given, CLIENT_LIMITS, &mut faults);
        self.take("config", &faults).then_some(rules)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use clap::Parser;

    use super::*;
    use crate::cli::flags::Cli;
    use crate::cli::flags::Command;

    fn rates(flags: &[&str], config: Option<&Path>) -> (Option<rates::Config>, String) {
        let line = ["weir", "serve"].iter().chain(flags);
        let Command::Serve(args) = Cli::parse_from(line).command else {
            panic!("not serve")
        };
        let mut faults = Faults::default();
        let rates = faults.rates(&args.proxy.limits, config);
        (rates, faults.to_string())
    }

    const LIMITS: &str = "apiVersion: eventratelimit.admission.k8s.io/v1alpha1\nkind: Configuration\n\
                          limits: [{type: Server, qps: 5, burst: 7}]\n";

    #[test]
    fn the_plugin_s_file_is_found_beside_the_one_that_names_it() {
        let folder = tempfile::tempdir().unwrap();
        let admission = folder.path().join("admission.yaml");
        fs::write(folder.path().join("events.yaml"), LIMITS).unwrap();
        let names = "apiVersion: apiserver.config.k8s.io/v1\nkind: AdmissionConfiguration\n\
                     plugins: [{name: EventRateLimit, path: events.yaml}]\n";
        fs::write(&admission, names).unwrap();
        let flag = format!("--admission-control-config-file={}", admission.display());
        let (rates, faults) = rates(&[&flag, "--event-rate-limit-groups=core"], None);
        assert_eq!(faults, "");
        let events = rates.unwrap().events.unwrap();
        assert_eq!((events.limits.len(), events.limits[0].burst), (1, 7));
        assert_eq!((events.groups, events.retry_after), (Groups::Core, true));
    }

    #[test]
    fn a_fault_names_the_flag_the_file_and_the_line() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("events.yaml");
        fs::write(&file, LIMITS.replace("qps: 5", "qps: -5")).unwrap();
        let flag = format!("--event-rate-limit-config={}", file.display());
        let (none, faults) = rates(&[&flag], None);
        let place = format!(
            "--event-rate-limit-config: {}:3:30: limits[0].qps",
            file.display()
        );
        assert!(none.is_none() && faults.starts_with(&place), "{faults}");
        let (none, faults) = rates(&[&flag, "--admission-control-config-file=a"], None);
        assert!(
            none.is_none() && faults.contains("not together with"),
            "{faults}"
        );
    }

    #[test]
    fn client_limits_stand_in_the_config_file() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("weir.yaml");
        let text = "securePort: 1\nclientLimits:\n- name: all\n  rules:\n  - subjects: [{kind: Group, group: {name: '*'}}]\n    \
                    nonResourceRules: [{verbs: ['*'], nonResourceURLs: ['*']}]\n";
        fs::write(&file, text).unwrap();
        let (found, faults) = rates(&[], Some(&file));
        assert_eq!(faults, "");
        assert_eq!(found.unwrap().clients[0].name, "all");
        fs::write(&file, text.replace("name: all", "nmae: all")).unwrap();
        let (none, faults) = rates(&[], Some(&file));
        assert!(
            none.is_none() && faults.contains("clientLimits[0].nmae: unknown field"),
            "{faults}"
        );
    }
}
