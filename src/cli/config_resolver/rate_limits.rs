//! Rate limits: the configuration files of EventRateLimit, and `clientLimits` of the `--config`
//! file.

use std::path::Path;

use crate::cli::config_resolver::flag_resolver::FlagResolver;
use crate::cli::flags::EventGroups;
use crate::cli::flags::LimitArgs;
use crate::cli::flags::origin::CLIENT_LIMITS;
use crate::document;
use crate::document::Node;
use crate::limits::rate;
use crate::limits::rate::clients;
use crate::limits::rate::clients::config::ClientLimitRule;
use crate::limits::rate::events::buckets::LimitedEventGroups;
use crate::limits::rate::events::config;
use crate::limits::rate::events::config::EventLimitConfig;
use crate::limits::rate::events::config::PluginConfigSource;
use crate::limits::rate::events::enforcer;

const ADMISSION: &str = "admission-control-config-file";
const EVENTS: &str = "event-rate-limit-config";

impl FlagResolver {
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
                let error =
                    format!("not together with --{ADMISSION}: each names the limits of events");
                self.add(EVENTS, error);
                None
            }
        };
        let clients = match file {
            Some(file) => self.read_client_limits(file),
            None => Some(Vec::new()),
        };
        let enforcer_config = |events| enforcer::EventRateLimitConfig {
            limits: events,
            groups: match limits.event_rate_limit_groups {
                EventGroups::All => LimitedEventGroups::All,
                EventGroups::Core => LimitedEventGroups::Core,
            },
            retry_after: limits.event_rate_limit_retry_after,
        };
        Some(rate::RateLimitsConfig {
            events: events?.map(enforcer_config),
            clients: clients?,
        })
    }

    fn read_named_text(&mut self, flag: &str, file: &Path) -> Option<(String, String)> {
        Some((file.display().to_string(), self.read_text(flag, file)?))
    }

    fn read_event_limits(&mut self, flag: &str, file: &Path) -> Option<Vec<EventLimitConfig>> {
        let (file, text) = self.read_named_text(flag, file)?;
        let mut diagnostics = document::Diagnostics::default();
        let limits = config::parse_configuration(&file, &text, &mut diagnostics);
        self.merge(flag, &diagnostics).then_some(limits)?
    }

    fn read_admission_config(&mut self, file: &Path) -> Option<Vec<EventLimitConfig>> {
        let (name, text) = self.read_named_text(ADMISSION, file)?;
        let mut diagnostics = document::Diagnostics::default();
        let source = config::parse_admission_configuration(&name, &text, &mut diagnostics);
        let inline = match &source {
            Some(PluginConfigSource::Inline(node, path)) => {
                config::parse_limits(node, path, &mut diagnostics)
            }
            Some(PluginConfigSource::Path(_)) | None => None,
        };
        if !self.merge(ADMISSION, &diagnostics) {
            return None;
        }
        match source? {
            PluginConfigSource::Inline(..) => inline,
            // Relative to the file that names it, as in kube-apiserver.
            PluginConfigSource::Path(path) => {
                let folder = file.parent().unwrap_or_else(|| Path::new(""));
                self.read_event_limits(ADMISSION, &folder.join(path))
            }
        }
    }

    /// The rules in the `--config` file. `command_line` has read the file for its flags and has
    /// reported the errors of the file as a whole.
    fn read_client_limits(&mut self, file: &Path) -> Option<Vec<ClientLimitRule>> {
        let (name, text) = self.read_named_text("config", file)?;
        let mut diagnostics = document::Diagnostics::default();
        let documents = document::parse_all(&name, &text, &mut diagnostics);
        let limits = documents
            .first()
            .and_then(|first| first.field(CLIENT_LIMITS));
        let Some(limits) = limits.filter(|limits| !Node::is_null(limits)) else {
            return Some(Vec::new());
        };
        let rules = clients::config::parse_rules(limits, CLIENT_LIMITS, &mut diagnostics);
        self.merge("config", &diagnostics).then_some(rules)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use clap::Parser;

    use super::*;
    use crate::cli::commands::Cli;
    use crate::cli::commands::Command;

    fn resolve(flags: &[&str], config: Option<&Path>) -> (Option<rate::RateLimitsConfig>, String) {
        let line = ["weir", "serve"].iter().chain(flags);
        let Command::Serve(args) = Cli::parse_from(line).command else {
            panic!("not serve")
        };
        let mut resolver = FlagResolver::default();
        let rates = resolver.resolve_rate_limits(&args.proxy.limits, config);
        (rates, resolver.findings.to_string())
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
        let (rates, errors) = resolve(&[&flag, "--event-rate-limit-groups=core"], None);
        assert_eq!(errors, "");
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
        let (rates, errors) = resolve(&[&flag], None);
        let location = format!(
            "--event-rate-limit-config: {}:3:30: limits[0].qps",
            file.display()
        );
        assert!(rates.is_none() && errors.starts_with(&location), "{errors}");
        let (rates, errors) = resolve(&[&flag, "--admission-control-config-file=a"], None);
        assert!(
            rates.is_none() && errors.contains("not together with"),
            "{errors}"
        );
    }

    #[test]
    fn client_limits_are_read_from_the_config_file() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("weir.yaml");
        let text = "securePort: 1\nclientLimits:\n- name: all\n  rules:\n  - subjects: [{kind: Group, group: {name: '*'}}]\n    \
                    nonResourceRules: [{verbs: ['*'], nonResourceURLs: ['*']}]\n";
        fs::write(&file, text).unwrap();
        let (rates, errors) = resolve(&[], Some(&file));
        assert_eq!(errors, "");
        assert_eq!(rates.unwrap().clients[0].name, "all");
        fs::write(&file, text.replace("name: all", "nmae: all")).unwrap();
        let (rates, errors) = resolve(&[], Some(&file));
        assert!(
            rates.is_none() && errors.contains("clientLimits[0].nmae: unknown field"),
            "{errors}"
        );
    }
}
