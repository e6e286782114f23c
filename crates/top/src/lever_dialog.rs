//! Setting and ending levers from `weir top`: the operator chooses a talker or a lever, sees the command
//! of `weir ctl`, and confirms it. No I/O, no drawing.
//!
//! The choices are those of the moment in which the dialog was opened: a row that moves under the
//! cursor would be blocked in place of the one that was meant.

use ratatui::crossterm::event::KeyCode;

use weir_status::snapshot::{StatusSnapshot, TalkerStatus};
use weir_talkers::Dimension;

/// The requests a second of a limit, until the operator types others.
const DEFAULT_QPS: &str = "10";

/// The most digits of these.
const MAX_QPS_DIGITS: usize = 6;

/// What the dialog does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeverDialogKind {
    /// Blocks a talker.
    Block,
    /// Limits a talker.
    Limit,
    /// Ends a lever.
    Undo,
}

/// A choice of the dialog.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeverChoice {
    /// What is shown.
    pub label: String,
    /// The arguments of `weir ctl` that name it.
    arguments: Vec<String>,
}

/// A dialog.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeverDialog {
    /// What it asks for.
    pub kind: LeverDialogKind,
    /// In the order of the screen.
    pub choices: Vec<LeverChoice>,
    /// The place of the chosen one.
    pub chosen: usize,
    /// The requests a second of a limit.
    qps: String,
    /// What weir has answered, a line each. `None` before the command is sent, empty until there is
    /// an answer.
    pub answer: Option<Vec<String>>,
}

/// What follows from a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DialogOutcome {
    /// The dialog is closed.
    Close,
    /// It stays.
    Stay,
    /// The arguments of `weir ctl` that the operator has confirmed.
    Send(Vec<String>),
}

impl LeverDialog {
    /// A dialog about the talkers of these rows, which are grouped by `by`. `None` if levers cannot
    /// name them.
    #[must_use]
    pub fn of_talkers<'s>(
        kind: LeverDialogKind,
        by: Dimension,
        rows: impl IntoIterator<Item = &'s TalkerStatus>,
    ) -> Option<Self> {
        let choice = |row: &TalkerStatus| {
            Some(LeverChoice {
                label: row.name.clone(),
                arguments: target_arguments(by, &row.name)?,
            })
        };
        Self::new(kind, rows.into_iter().filter_map(choice).collect())
    }

    /// A dialog about the levers in force. `None` if there is none.
    #[must_use]
    pub fn of_levers(now: &StatusSnapshot) -> Option<Self> {
        let mut choices: Vec<LeverChoice> = Vec::new();
        for lever in &now.levers {
            let argument = lever.id.to_string();
            // Replicas have the same levers.
            if choices
                .iter()
                .all(|choice| choice.arguments != [&*argument])
            {
                choices.push(LeverChoice {
                    label: format!("{argument} {}", lever.summary()),
                    arguments: vec![argument],
                });
            }
        }
        Self::new(LeverDialogKind::Undo, choices)
    }

    fn new(kind: LeverDialogKind, choices: Vec<LeverChoice>) -> Option<Self> {
        (!choices.is_empty()).then(|| Self {
            kind,
            choices,
            chosen: 0,
            qps: DEFAULT_QPS.to_owned(),
            answer: None,
        })
    }

    /// The arguments of `weir ctl`.
    #[must_use]
    pub fn arguments(&self) -> Vec<String> {
        let chosen = self.choices.get(self.chosen);
        let named = chosen.map(|choice| choice.arguments.clone());
        let verb = match self.kind {
            LeverDialogKind::Block => "block",
            LeverDialogKind::Limit => "limit",
            LeverDialogKind::Undo => "undo",
        };
        let qps = (self.kind == LeverDialogKind::Limit).then(|| format!("--qps={}", self.qps));
        let rest = named.into_iter().flatten().chain(qps);
        [verb.to_owned()].into_iter().chain(rest).collect()
    }

    /// Handles a key.
    pub fn handle_key(&mut self, key: KeyCode) -> DialogOutcome {
        match (key, &self.answer) {
            (KeyCode::Esc, _) => return DialogOutcome::Close,
            (_, Some(answer)) if answer.is_empty() => {} // it is about to come
            (_, Some(_)) => return DialogOutcome::Close,
            (KeyCode::Enter, None) => {
                self.answer = Some(Vec::new());
                return DialogOutcome::Send(self.arguments());
            }
            (KeyCode::Down | KeyCode::Char('j'), None) => {
                let last = self.choices.len().saturating_sub(1);
                self.chosen = self.chosen.saturating_add(1).min(last);
            }
            (KeyCode::Up | KeyCode::Char('k'), None) => {
                self.chosen = self.chosen.saturating_sub(1);
            }
            (KeyCode::Backspace, None) => {
                self.qps.pop();
            }
            (KeyCode::Char(digit @ '0'..='9'), None) if self.qps.len() < MAX_QPS_DIGITS => {
                self.qps.push(digit);
            }
            _ => {}
        }
        DialogOutcome::Stay
    }
}

/// The arguments of `weir ctl` that select a talker. `None` if levers cannot name it: at the end of a
/// name `*` would mean many, and names in angle brackets are of clients without one.
fn target_arguments(by: Dimension, name: &str) -> Option<Vec<String>> {
    if name.ends_with('*') || matches!(name, "" | "<none>" | "<unknown>") {
        return None;
    }
    let flag = |flag: &str, value: &str| vec![format!("--{flag}={value}")];
    Some(match by {
        Dimension::Flow | Dimension::Tag => return None,
        Dimension::Namespace => flag("namespace", name),
        // Top talkers show verb and resource as one.
        Dimension::Resource => {
            let (verb, resource) = name.split_once(' ')?;
            [flag("verb", verb), flag("resource", resource)].concat()
        }
        Dimension::SourceAddress => flag("source", name),
        Dimension::User => flag("user", name),
        Dimension::UserAgent => flag("user-agent", name),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_talker_is_selected_by_the_flags_of_its_dimension() {
        let arguments = |by, name| target_arguments(by, name).map(|all| all.join(" "));
        for (by, name, expected) in [
            (Dimension::User, "alice", Some("--user=alice")),
            (Dimension::UserAgent, "wrk/1", Some("--user-agent=wrk/1")),
            (
                Dimension::Resource,
                "list deployments.apps",
                Some("--verb=list --resource=deployments.apps"),
            ),
            (Dimension::Flow, "global-default/alice", None),
            (Dimension::UserAgent, "kube*", None),
            (Dimension::UserAgent, "<none>", None),
        ] {
            assert_eq!(arguments(by, name).as_deref(), expected, "{name}");
        }
    }
}
