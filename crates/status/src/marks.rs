//! What has changed in the last 15 minutes, as marks on the time axis of the plots: reloads, changes
//! of flow schemas and priority levels, outages of API servers, levers. [`changes`] compares two
//! states and is pure.

use std::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, Serialize};

/// Most marks that are kept. More of them hide a plot.
const MAX_MARKS: usize = 64;

/// How long a mark is kept, in milliseconds: as long as the plots.
const MAX_AGE_MS: u64 = 15 * 60 * 1000;

/// Marks of replicas that are no further apart than this are the same one, in milliseconds: a lever
/// reaches all of them.
const SAME_WITHIN_MS: u64 = 5000;

/// Characters of a mark's text: a lever's target may have 64 values.
const MAX_TEXT_CHARS: usize = 200;

/// The latest time that is taken from another replica: a browser has all its digits.
const MAX_UNIX_MS: u64 = 1 << 53;

/// What a mark is about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MarkKind {
    /// Flow schemas and priority levels.
    Flowcontrol,
    /// A lever begins or ends.
    Lever,
    /// An API server does not answer, or does again.
    Outage,
    /// The configuration was replaced or refused.
    #[default]
    Reload,
    /// The process began.
    Start,
}

/// A mark.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct MarkStatus {
    /// The time in milliseconds since 1970.
    pub unix_ms: u64,
    /// What it is about.
    pub kind: MarkKind,
    /// What has happened.
    pub text: String,
    /// The replica that has it, where several are shown together.
    pub replica: Option<String>,
}

/// The state whose changes are marked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MarkedState {
    /// The number of the configuration in force.
    pub generation: u64,
    /// When a configuration was last refused, in milliseconds since 1970, and why.
    pub refused: Option<(u64, String)>,
    /// The number of changes of flow schemas and priority levels, and the last one.
    pub flowcontrol: (u64, String),
    /// The API servers that do not answer, and why.
    pub silent_servers: BTreeMap<String, String>,
    /// The levers in force by id.
    pub levers: BTreeMap<u64, String>,
}

/// What has changed from one state to the other.
#[must_use]
pub fn changes(before: &MarkedState, now: &MarkedState) -> Vec<(MarkKind, String)> {
    let mut changes = Vec::new();
    if now.generation > before.generation {
        let text = format!("configuration {} is in force", now.generation);
        changes.push((MarkKind::Reload, text));
    }
    if let Some((_, why)) = now
        .refused
        .as_ref()
        .filter(|_| now.refused != before.refused)
    {
        changes.push((
            MarkKind::Reload,
            format!("a configuration was refused: {why}"),
        ));
    }
    if now.flowcontrol.0 > before.flowcontrol.0 {
        changes.push((MarkKind::Flowcontrol, now.flowcontrol.1.clone()));
    }
    for (server, why) in &now.silent_servers {
        if !before.silent_servers.contains_key(server) {
            changes.push((MarkKind::Outage, format!("{server}: {why}")));
        }
    }
    for server in before.silent_servers.keys() {
        if !now.silent_servers.contains_key(server) {
            changes.push((MarkKind::Outage, format!("{server} answers again")));
        }
    }
    for (id, summary) in &now.levers {
        if !before.levers.contains_key(id) {
            changes.push((MarkKind::Lever, format!("lever {id}: {summary}")));
        }
    }
    for (id, summary) in &before.levers {
        if !now.levers.contains_key(id) {
            changes.push((MarkKind::Lever, format!("lever {id} has ended: {summary}")));
        }
    }
    changes
}

/// The marks of the last 15 minutes, oldest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MarkRing(VecDeque<MarkStatus>);

impl MarkRing {
    /// Adds marks at this time, and drops those that are too old or too many.
    pub fn add(&mut self, unix_ms: u64, marks: Vec<(MarkKind, String)>) {
        self.0
            .extend(marks.into_iter().map(|(kind, text)| MarkStatus {
                unix_ms,
                kind,
                text: text.chars().take(MAX_TEXT_CHARS).collect(),
                replica: None,
            }));
        let is_old = |mark: &MarkStatus| mark.unix_ms + MAX_AGE_MS < unix_ms;
        while self.0.len() > MAX_MARKS || self.0.front().is_some_and(is_old) {
            self.0.pop_front();
        }
    }

    /// All marks.
    #[must_use]
    pub fn marks(&self) -> Vec<MarkStatus> {
        self.0.iter().cloned().collect()
    }
}

impl From<&[MarkStatus]> for MarkRing {
    fn from(marks: &[MarkStatus]) -> Self {
        let beyond = marks.len().saturating_sub(MAX_MARKS);
        Self(marks.iter().skip(beyond).cloned().collect())
    }
}

/// The marks of several replicas in the order of their times, each with the name of its replica. What
/// all of them mark at nearly the same time is one mark without a name.
#[must_use]
pub(crate) fn merged_marks<'a>(
    parts: impl Iterator<Item = (&'a str, &'a [MarkStatus])>,
) -> Vec<MarkStatus> {
    let mut all: Vec<MarkStatus> = parts
        .flat_map(|(name, marks)| {
            marks.iter().map(|mark| MarkStatus {
                replica: Some(name.to_owned()),
                ..mark.clone()
            })
        })
        .collect();
    all.sort_by_key(|mark| mark.unix_ms);
    let mut merged: Vec<MarkStatus> = Vec::new();
    for mark in all {
        let is_same = |other: &&mut MarkStatus| {
            (other.kind, &other.text) == (mark.kind, &mark.text)
                && other.replica != mark.replica
                && mark.unix_ms - other.unix_ms <= SAME_WITHIN_MS
        };
        match merged.iter_mut().rev().find(is_same) {
            Some(same) => same.replica = None,
            None => merged.push(mark),
        }
    }
    let beyond = merged.len().saturating_sub(MAX_MARKS);
    merged.split_off(beyond)
}

/// Bounds the marks of another replica.
pub(crate) fn bound_marks(marks: &mut Vec<MarkStatus>) {
    marks.truncate(MAX_MARKS);
    for mark in marks {
        mark.unix_ms = mark.unix_ms.min(MAX_UNIX_MS);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_change_is_marked_once_with_what_has_happened() {
        let names = |names: &[&str]| -> BTreeMap<String, String> {
            let names = names.iter();
            names
                .map(|name| ((*name).to_owned(), "hangs".to_owned()))
                .collect()
        };
        let before = MarkedState {
            generation: 1,
            flowcontrol: (4, String::new()),
            silent_servers: names(&["a"]),
            levers: [(1, "block user=alice".to_owned())].into(),
            ..MarkedState::default()
        };
        assert_eq!(changes(&before, &before), []);
        let now = MarkedState {
            generation: 2,
            refused: Some((7, "x: wrong".to_owned())),
            flowcontrol: (5, "FlowSchema team has changed (file)".to_owned()),
            silent_servers: names(&["b"]),
            levers: [(2, "total 50".to_owned())].into(),
        };
        let texts = changes(&before, &now);
        let texts: Vec<_> = texts.iter().map(|(kind, text)| (*kind, &**text)).collect();
        assert_eq!(
            texts,
            [
                (MarkKind::Reload, "configuration 2 is in force"),
                (MarkKind::Reload, "a configuration was refused: x: wrong"),
                (MarkKind::Flowcontrol, "FlowSchema team has changed (file)"),
                (MarkKind::Outage, "b: hangs"),
                (MarkKind::Outage, "a answers again"),
                (MarkKind::Lever, "lever 2: total 50"),
                (MarkKind::Lever, "lever 1 has ended: block user=alice"),
            ]
        );
        assert_eq!(changes(&now, &now), [], "once");
    }

    #[test]
    fn marks_are_kept_for_fifteen_minutes_and_are_bounded() {
        let mut ring = MarkRing::default();
        let mark = |n: u64| vec![(MarkKind::Reload, n.to_string())];
        ring.add(1000, mark(0));
        ring.add(1000 + MAX_AGE_MS, mark(1));
        assert_eq!(ring.marks().len(), 2);
        ring.add(1001 + MAX_AGE_MS, Vec::new());
        assert_eq!(ring.marks().len(), 1, "one is too old");
        for n in 0..1000 {
            ring.add(2_000_000 + n, mark(n));
        }
        assert_eq!(ring.marks().len(), MAX_MARKS);
        assert_eq!(ring.marks().last().map(|mark| &*mark.text), Some("999"));
        assert_eq!(MarkRing::from(&*ring.marks()), ring);
        ring.add(3_000_000, vec![(MarkKind::Lever, "x".repeat(5000))]);
        let last = ring.marks().pop().unwrap();
        assert_eq!(last.text.len(), MAX_TEXT_CHARS);
    }

    #[test]
    fn what_replicas_mark_together_is_one_mark() {
        let mark = |unix_ms, text: &str| MarkStatus {
            unix_ms,
            kind: MarkKind::Lever,
            text: text.to_owned(),
            replica: None,
        };
        let one = [mark(1000, "lever 1"), mark(9000, "own")];
        let two = [mark(3000, "lever 1"), mark(20_000, "lever 1")];
        let parts = [("one", &one[..]), ("two", &two[..])];
        let merged = merged_marks(parts.into_iter());
        let shown: Vec<_> = merged
            .iter()
            .map(|mark| (mark.unix_ms, &*mark.text, mark.replica.as_deref()))
            .collect();
        assert_eq!(
            shown,
            [
                (1000, "lever 1", None),
                (9000, "own", Some("one")),
                (20_000, "lever 1", Some("two")),
            ]
        );
    }
}
