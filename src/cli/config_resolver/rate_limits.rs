//! The files of EventRateLimit, and `clientLimits` of the `--config` file.

use std::path::Path;

use super::FlagErrors;
use crate::cli::command_line::config_file::CLIENT_LIMITS;
use crate::cli::flags::EventGroups;
use crate::cli::flags::LimitArgs;
use crate::document;
use crate::document::Node;
use crate::limits::rate;
use crate::limits::rate::clients;
use crate::limits::rate::clients::config::ClientLimitRule;
use crate::limits::rate::events::LimitedEventGroups;
use crate::limits::rate::events::config;
use crate::limits::rate::events::config::EventLimitConfig;
use crate::limits::rate::events::config::PluginConfigSource;
use crate::limits::rate::events::enforcer;

const ADMISSION: &str = "admission-control-config-file";
const EVENTS: &str = "event-rate-limit-config";

impl FlagErrors {
    pub(super) fn resolve_rate_limits(
        &mut self,
        limits: &LimitArgs,
        file: Option<&Path>,
    ) -> Option<rate::RateLimitsConfig> {
        let events = match (
            &limits.admission_control_config_file,
            &limits.event_rate_limit_config,
        ) {
            (None, None) => Some(None),
            (Some(file), None) => self.read_admission_config(file).map(Some),
            (None, Some(file)) => self.read_event_limits(EVENTS, file).map(Some),
            (Some(_), Some(_)) => {
                let what =
                    format!("not together with --{ADMISSION}: each names the limits of events");
                self.add(EVENTS, what);
                None
            }
        };
        let clients = match file {
            Some(file) => self.read_client_limits(file),
            None => Some(Vec::new()),
        };
        let enforced = |events| enforcer::EventRateLimitConfig {
            limits: events,
            groups: match limits.event_rate_limit_groups {
                EventGroups::All => LimitedEventGroups::All,
                EventGroups::Core => LimitedEventGroups::Core,
            },
            retry_after: limits.event_rate_limit_retry_after,
        };
        Some(rate::RateLimitsConfig {
            events: events?.map(enforced),
            clients: clients?,
        })
    }

    fn read_text(&mut self, flag: &str, file: &Path) -> Option<(String, String)> {
        let text = String::from_utf8_lossy(&self.read_file(flag, file)?).into_owned();
        Some((file.display().to_string(), text))
    }

    fn read_event_limits(&mut self, flag: &str, file: &Path) -> Option<Vec<EventLimitConfig>> {
        let (file, text) = self.read_text(flag, file)?;
        let mut faults = document::Diagnostics::default();
        let limits = config::parse_configuration(&file, &text, &mut faults);
        self.merge(flag, &faults).then_some(limits)?
    }

    fn read_admission_config(&mut self, file: &Path) -> Option<Vec<EventLimitConfig>> {
        let (name, text) = self.read_text(ADMISSION, file)?;
        let mut faults = document::Diagnostics::default();
        let source = config::parse_admission_configuration(&name, &text, &mut faults);
        let inline = match &source {
            Some(PluginConfigSource::Inline(node, path)) => {
                config::parse_limits(node, path, &mut faults)
            }
            Some(PluginConfigSource::Path(_)) | None => None,
        };
        if !self.merge(ADMISSION, &faults) {
            return None;
        }
        match source? {
            PluginConfigSource::Inline(..) => inline,
            // Relative to the file that names it, as upstream has it.
            PluginConfigSource::Path(path) => {
                let folder = file.parent().unwrap_or_else(|| Path::new(""));
                self.read_event_limits(ADMISSION, &folder.join(path))
            }
        }
    }

    /// The file was read for the flags already, and what is wrong with it as a whole was told then.
    fn read_client_limits(&mut self, file: &Path) -> Option<Vec<ClientLimitRule>> {
        let (name, text) = self.read_text("config", file)?;
        let mut faults = document::Diagnostics::default();
        let documents = document::parse_all(&name, &text, &mut faults);
        let given = documents
            .first()
            .and_then(|first| first.field(CLIENT_LIMITS));
        let Some(given) = given.filter(|given| !Node::is_null(given)) else {
            return Some(Vec::new());
        };
        let rules = clients::config::parse_rules(given, CLIENT_LIMITS, &mut faults);
        self.merge("config", &faults).then_some(rules)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use clap::Parser;

    use super::*;
    use crate::cli::flags::Cli;
    use crate::cli::flags::Command;

    fn resolve(flags: &[&str], config: Option<&Path>) -> (Option<rate::RateLimitsConfig>, String) {
        let line = ["weir", "serve"].iter().chain(flags);
        let Command::Serve(args) = Cli::parse_from(line).command else {
            panic!("not serve")
        };
        let mut faults = FlagErrors::default();
        let rates = faults.resolve_rate_limits(&args.proxy.limits, config);
        (rates, faults.to_string())
    }

    const LIMITS: &str = "apiVersion: eventratelimit.admission.k8s.io/v1alpha1\nkind: Configuration\n\
                          limits: [{type: Server, qps: 5, burst: 7}]\n";

    #[test]
    fn the_plugin_s_file_is_relative_to_the_file_that_names_it() {
        let folder = tempfile::tempdir().unwrap();
        let admission = folder.path().join("admission.yaml");
        fs::write(folder.path().join("events.yaml"), LIMITS).unwrap();
        let names = "apiVersion: apiserver.config.k8s.io/v1\nkind: AdmissionConfiguration\n\
                     plugins: [{name: EventRateLimit, path: events.yaml}]\n";
        fs::write(&admission, names).unwrap();
        let flag = format!("--admission-control-config-file={}", admission.display());
        let (rates, faults) = resolve(&[&flag, "--event-rate-limit-groups=core"], None);
        assert_eq!(faults, "");
        let events = rates.unwrap().events.unwrap();
        assert_eq!((events.limits.len(), events.limits[0].burst), (1, 7));
        assert_eq!(
            (events.groups, events.retry_after),
            (LimitedEventGroups::Core, true)
        );
    }

    #[test]
    fn an_error_names_its_flag_file_and_line() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("events.yaml");
        fs::write(&file, LIMITS.replace("qps: 5", "qps: -5")).unwrap();
        let flag = format!("--event-rate-limit-config={}", file.display());
        let (none, faults) = resolve(&[&flag], None);
        let place = format!(
            "--event-rate-limit-config: {}:3:30: limits[0].qps",
            file.display()
        );
        assert!(none.is_none() && faults.starts_with(&place), "{faults}");
        let (none, faults) = resolve(&[&flag, "--admission-control-config-file=a"], None);
        assert!(
            none.is_none() && faults.contains("not together with"),
            "{faults}"
        );
    }

    #[test]
    fn client_limits_are_read_from_the_config_file() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("weir.yaml");
        let text = "securePort: 1\nclientLimits:\n- name: all\n  rules:\n  - subjects: [{kind: Group, group: {name: '*'}}]\n    \
                    nonResourceRules: [{verbs: ['*'], nonResourceURLs: ['*']}]\n";
        fs::write(&file, text).unwrap();
        let (found, faults) = resolve(&[], Some(&file));
        assert_eq!(faults, "");
        assert_eq!(found.unwrap().clients[0].name, "all");
        fs::write(&file, text.replace("name: all", "nmae: all")).unwrap();
        let (none, faults) = resolve(&[], Some(&file));
        assert!(
            none.is_none() && faults.contains("clientLimits[0].nmae: unknown field"),
            "{faults}"
        );
    }
}
