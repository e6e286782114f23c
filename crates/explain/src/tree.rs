//! An explanation for a person: a tree within the width of a terminal.

use std::fmt::Write as _;

use crate::explainer::{Explanation, ResolvedRequest};
use crate::levels::LevelAtRest;
use crate::now::{Now, RateLimitNow};
use crate::policies::PolicyReport;
use crate::rate_limits::{ClientLimitCharge, ClientRuleCharge, EventLimitCharge};
use crate::report::{
    FlowSchemaMatchReport, Prediction, RequestBytes, RequestInfoReport, ResourceKey,
    WorkEstimateReport,
};
use weir_flowcontrol::matching::Mismatch;
use weir_kubernetes::api::UserInfo;
use weir_kubernetes::encoding::go_text::quote;
use weir_kubernetes::encoding::printable::{escape_message, is_printable};
use weir_kubernetes::request_info::RequestInfo;

/// The width of a tree in characters.
pub const WIDTH: usize = 80;

/// The least width of text, however deep it is.
const MIN_TEXT_WIDTH: usize = 20;

/// A line with the lines below it.
#[derive(Debug, Default)]
struct Branch {
    text: String,
    below: Vec<Self>,
}

impl Branch {
    /// What is not printable is escaped: texts stay on their line.
    fn new(text: impl AsRef<str>) -> Self {
        Self {
            text: escape_message(text.as_ref()).into_owned(),
            below: Vec::new(),
        }
    }

    fn with(mut self, below: impl IntoIterator<Item = Self>) -> Self {
        self.below.extend(below);
        self
    }
}

/// The tree of an explanation. `dangling` are the schemas that are left out.
#[must_use]
pub fn render(
    resolved: &ResolvedRequest<'_>,
    explanation: &Explanation<'_>,
    dangling: &[String],
    now: Option<&Now<'_>>,
) -> String {
    let method = resolved.request.method.as_deref().unwrap_or_default();
    let url = resolved.request.url.as_ref();
    let url = url.map_or_else(String::new, |url| shown(&url.0));
    let mut root = Branch::new(format!("{} {url}", shown(method.as_bytes())));
    if let Some(info) = &explanation.request_info {
        root.below.push(request_branch(info));
    }
    root.below.push(user_branch(&resolved.user));
    if let Some(found) = &explanation.flow_schema_match {
        root.below.push(schemas_branch(found, dangling));
        root.below
            .extend(explanation.priority_level.map(level_branch));
        root.below.push(flow_branch(found, explanation));
    }
    root.below
        .extend(explanation.work_estimate.as_ref().map(seats_branch));
    if let Some(counter) = explanation.max_in_flight {
        let limit = counter
            .limit
            .map_or_else(|| "no limit".to_owned(), |limit| format!("at most {limit}"));
        let exempt = if counter.exempt {
            "; system:masters passes a full limiter"
        } else {
            ""
        };
        root.below.push(Branch::new(format!(
            "max-in-flight: {} requests, {limit}{exempt}",
            counter.kind
        )));
    }
    if matches!(
        explanation.request_info,
        Some(RequestInfoReport::Resolved { error: None, .. })
    ) {
        root.below
            .extend(explanation.policies.as_deref().map(policies_branch));
        root.below
            .push(events_branch(explanation.event_limits.as_deref()));
        root.below
            .push(clients_branch(explanation.client_limits.as_deref()));
    }
    root.below.push(Branch::new(format!(
        "at rest: {}",
        outcome(&explanation.at_rest)
    )));
    root.below.extend(now.map(now_branch));
    let mut text = String::new();
    draw(&root, "", "", &mut text);
    text
}

fn request_branch(report: &RequestInfoReport<'_>) -> Branch {
    let RequestInfoReport::Resolved { info, error } = report else {
        return Branch::new("request: not valid HTTP");
    };
    let flags = format!(
        "{}, {}",
        if info.mutating() {
            "mutating"
        } else {
            "read-only"
        },
        if info.long_running() {
            "long-running"
        } else {
            "not long-running"
        }
    );
    let error = error.iter().map(|message| Branch::new(shown(message)));
    Branch::new(format!("request: {}", describe(info)))
        .with(error)
        .with([Branch::new(flags)])
}

/// The request in Kubernetes' terms.
fn describe(info: &RequestInfo<'_>) -> String {
    let verb = match info.verb().as_str() {
        "" => "(no verb)",
        verb => verb,
    };
    if !info.is_resource_request() {
        return format!("{verb} of the non-resource path {}", shown(info.path()));
    }
    let mut text = format!("{verb} {}", shown(info.resource()));
    for (before, part) in [
        ("/", info.subresource()),
        (", name ", info.name()),
        (", namespace ", info.namespace()),
    ] {
        if !part.is_empty() {
            text = text + before + &shown(part);
        }
    }
    let group = match info.api_group() {
        b"" => "core".to_owned(),
        group => shown(group),
    };
    format!("{text} ({group}/{})", shown(info.api_version()))
}

fn user_branch(user: &UserInfo) -> Branch {
    let groups: Vec<String> = user
        .groups
        .iter()
        .map(|group| shown(group.as_bytes()))
        .collect();
    let groups = match &*groups {
        [] => "no groups".to_owned(),
        groups => format!("groups: {}", groups.join(", ")),
    };
    Branch::new(format!("user: {}", shown(user.name.as_bytes()))).with([Branch::new(groups)])
}

fn schemas_branch(found: &FlowSchemaMatchReport<'_>, dangling: &[String]) -> Branch {
    let tried = found.tried.iter().map(|schema| {
        let outcome = schema.mismatch.map_or("matches", Mismatch::reason);
        Branch::new(format!("{}: {outcome}", schema.flow_schema))
    });
    let by_default = found.tried.none_matches().then(|| {
        Branch::new(format!(
            "no schema matches: {} takes the request",
            found.flow_schema
        ))
    });
    let dangling = dangling.iter().map(|name| {
        Branch::new(format!(
            "{name}: left out, its priority level does not exist"
        ))
    });
    let dry_run = if found.dry_run { " (dry run)" } else { "" };
    Branch::new(format!("flow schema: {}{dry_run}", found.flow_schema))
        .with(tried)
        .with(by_default)
        .with(dangling)
}

fn level_branch(level: &LevelAtRest) -> Branch {
    let branch = Branch::new(format!("priority level: {}", level.name));
    let queues = match level.kind {
        "Exempt" => "exempt: neither queues nor rejects".to_owned(),
        "Reject" => "no queues: rejects what finds no free seat".to_owned(),
        _ => format!(
            "{} queues of at most {} requests; each flow has {}",
            level.queues, level.queue_length_limit, level.hand_size
        ),
    };
    let seats = format!(
        "seats: {} nominal, {} at rest, from {} to {} with borrowing",
        level.nominal_cl, level.current_cl, level.min_cl, level.max_cl
    );
    branch.with([Branch::new(queues), Branch::new(seats)])
}

fn flow_branch(found: &FlowSchemaMatchReport<'_>, explanation: &Explanation<'_>) -> Branch {
    let flow = match &*found.flow_distinguisher.0 {
        b"" => "the only one of its schema".to_owned(),
        distinguisher => shown(distinguisher),
    };
    let hand = explanation.shuffle_shard.map(|shard| {
        let cards: Vec<String> = shard.hand.cards().iter().map(usize::to_string).collect();
        Branch::new(format!("hash {}; queues {}", shard.hash, cards.join(", ")))
    });
    Branch::new(format!("flow: {flow}")).with(hand)
}

fn seats_branch(report: &WorkEstimateReport<'_>) -> Branch {
    let work = &report.work;
    let mut text = format!("seats: {}", work.initial_seats);
    if work.final_seats > 0 {
        let latency = work.additional_latency;
        let _ = write!(
            text,
            ", and {} for {latency:?} after the response",
            work.final_seats
        );
    }
    let count = report.object_count_consulted.then(|| {
        let key = shown(ResourceKey(report.info).to_string().as_bytes());
        Branch::new(match report.object_count {
            Some(count) => format!("by the number of {key}, given as {count}"),
            None => format!("by the number of {key}, which is not known (--object-count)"),
        })
    });
    let watches = report
        .watch_count_consulted
        .then(|| Branch::new("by the number of watches that receive the write (--watch-count)"));
    Branch::new(text).with(count).with(watches)
}

fn policies_branch(reports: &[PolicyReport<'_>]) -> Branch {
    let each = reports.iter().map(|report| {
        let dry_run = if report.dry_run { " (dry run)" } else { "" };
        let applies = if report.applies {
            ""
        } else {
            "does not apply: "
        };
        let why = report.why.iter().map(|why| Branch::new(why.clone()));
        let (name, does) = (report.policy, &report.does);
        Branch::new(format!("{name}{dry_run}: {applies}{does}")).with(why)
    });
    Branch::new(match reports {
        [] => "policies: none, no rule selects it",
        _ => "policies",
    })
    .with(each)
}

fn events_branch(charges: Option<&[EventLimitCharge<'_>]>) -> Branch {
    let each = charges.unwrap_or_default().iter().map(|charge| {
        let key = key_text(charge.key.as_ref(), charge.needs);
        let dry_run = if charge.dry_run { " (dry run)" } else { "" };
        Branch::new(format!(
            "{}{dry_run} ({}/s, burst {}): {key}",
            charge.r#type, charge.qps, charge.burst
        ))
    });
    Branch::new(match charges {
        None => "event limits: none are configured",
        Some([]) => "event limits: none, it writes no event that is limited",
        Some(_) => "event limits",
    })
    .with(each)
}

fn key_text(key: Option<&RequestBytes<'_>>, needs: Option<&str>) -> String {
    match key {
        Some(RequestBytes(key)) if key.is_empty() => "one bucket for all".to_owned(),
        Some(RequestBytes(key)) => shown(key),
        None => format!("not known without {}", needs.unwrap_or("more")),
    }
}

fn clients_branch(charges: Option<&[ClientRuleCharge<'_>]>) -> Branch {
    let each = charges.unwrap_or_default().iter().map(|charge| {
        let client = key_text(charge.client.as_ref(), charge.needs);
        let dry_run = if charge.dry_run { " (dry run)" } else { "" };
        Branch::new(format!("{}{dry_run}: client {client}", charge.rule))
            .with(charge.limits.iter().map(limit_branch))
    });
    Branch::new(match charges {
        None => "client limits: none are configured",
        Some([]) => "client limits: none, no rule matches",
        Some(_) => "client limits",
    })
    .with(each)
}

fn limit_branch(charge: &ClientLimitCharge) -> Branch {
    let mut text = format!("{} per {}:", charge.limit, charge.per);
    if let (Some(qps), Some(burst)) = (charge.qps, charge.burst) {
        let _ = write!(text, " {qps}/s, burst {burst}");
    }
    if let Some(concurrent) = charge.concurrent {
        let _ = write!(text, " {concurrent} at a time");
    }
    if let (Some(base), Some(max)) = (charge.base_s, charge.max_s) {
        let _ = write!(text, " {base}s to {max}s after failures");
    }
    Branch::new(text)
}

fn now_branch(now: &Now<'_>) -> Branch {
    let level = now.level.map(|level| {
        let limit = level
            .current_cl
            .map_or_else(String::new, |limit| format!(" of {limit}"));
        Branch::new(format!(
            "{} requests execute on {}{limit} seats, {} wait",
            level.executing, level.seats_in_use, level.waiting
        ))
    });
    let queues: Vec<String> = now
        .queues
        .iter()
        .map(|queue| format!("{}: {}", queue.index, queue.waiting))
        .collect();
    let hand = (!queues.is_empty())
        .then(|| Branch::new(format!("waiting in its queues: {}", queues.join(", "))));
    Branch::new(format!("now: {}", outcome(&now.outcome)))
        .with(level)
        .with(hand)
        .with(now.rate_limits.iter().map(rate_limit_branch))
}

fn rate_limit_branch(limit: &RateLimitNow<'_>) -> Branch {
    let of_key = limit
        .rejected_of_key
        .map_or_else(String::new, |n| format!(", {n} of them with this key"));
    let RateLimitNow { name, rejected, .. } = limit;
    Branch::new(format!(
        "{name}: {rejected} rejected since the start{of_key}"
    ))
}

fn outcome(outcome: &Prediction) -> String {
    let verb = match outcome.outcome {
        "execute" => "executes",
        "queue" => "waits",
        "reject" => "rejected",
        _ => "not known",
    };
    let code = outcome
        .code
        .map_or_else(String::new, |code| format!(" with {code}"));
    format!("{verb}{code}: {}", outcome.reason)
}

/// A text of a request, in quotes unless it is a word: blanks could fill the line, and the rest be taken
/// for a line of the tree.
fn shown(bytes: &[u8]) -> String {
    let is_of_word = |c: char| is_printable(c) && !matches!(c, ' ' | '"' | '\\');
    match str::from_utf8(bytes) {
        Ok(word) if word.chars().all(is_of_word) => word.to_owned(),
        Ok(_) | Err(_) => quote(bytes),
    }
}

/// Draws a branch: `first` stands before its first line, `rest` before all others.
fn draw(branch: &Branch, first: &str, rest: &str, to: &mut String) {
    let width = WIDTH
        .saturating_sub(rest.chars().count() + 2)
        .max(MIN_TEXT_WIDTH);
    for (n, line) in wrap(&branch.text, width).iter().enumerate() {
        let (before, bar) = match n {
            0 => (first, ""),
            _ if branch.below.is_empty() => (rest, "  "),
            _ => (rest, "│ "),
        };
        let _ = writeln!(to, "{before}{bar}{line}");
    }
    for (n, below) in branch.below.iter().enumerate() {
        let is_last = n + 1 == branch.below.len();
        let [fork, bar] = if is_last {
            ["└─ ", "   "]
        } else {
            ["├─ ", "│  "]
        };
        draw(below, &format!("{rest}{fork}"), &format!("{rest}{bar}"), to);
    }
}

/// Lines of at most `width` characters. A longer word is divided.
fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    let mut line = String::new();
    let mut length = 0;
    for word in text.split(' ') {
        let letters: Vec<char> = word.chars().collect();
        if length > 0 && length + 1 + letters.len() > width {
            lines.push(std::mem::take(&mut line));
            length = 0;
        }
        if length > 0 {
            line.push(' ');
            length += 1;
        }
        for letter in letters {
            if length == width {
                lines.push(std::mem::take(&mut line));
                length = 0;
            }
            line.push(letter);
            length += 1;
        }
    }
    lines.push(line);
    lines
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use weir_kubernetes::encoding::printable::HOSTILE_NAMES;

    #[test]
    fn no_line_is_wider_than_a_terminal() {
        let branch = Branch::new("a ".repeat(100)).with([
            Branch::new("b".repeat(200)).with([Branch::new("c ".repeat(70))]),
            Branch::new("d"),
        ]);
        let mut text = String::new();
        draw(&branch, "", "", &mut text);
        assert!(
            text.lines().all(|line| line.chars().count() <= WIDTH),
            "{text}"
        );
        assert_eq!(text.matches('a').count() + text.matches('b').count(), 300);
        assert!(
            text.contains("\n│  └─ c") && text.ends_with("\n└─ d\n"),
            "{text}"
        );
    }

    #[test]
    fn control_characters_are_escaped() {
        let text = |bytes: &[u8]| Branch::new(shown(bytes)).text;
        assert_eq!(text(b"a\x1b[2J\n\xff"), r#""a\x1b[2J\n\xff""#);
        assert_eq!(text("x\u{202e}y é".as_bytes()), r#""x\u202ey é""#);
        assert_eq!(text("system:é/ü".as_bytes()), "system:é/ü");
    }

    #[test]
    fn no_name_looks_like_another_or_like_a_line_of_the_tree() {
        let forged = format!("alice{}└─ at rest: executes", " ".repeat(80));
        let names = HOSTILE_NAMES.into_iter().chain([&*forged]);
        let shown: BTreeSet<String> = names.map(|name| shown(name.as_bytes())).collect();
        assert_eq!(shown.len(), HOSTILE_NAMES.len() + 1);
        for name in shown {
            let is_quoted = name.starts_with('"') && name.ends_with('"');
            assert!(is_quoted || !name.contains([' ', '\\']), "{name}");
        }
    }
}
