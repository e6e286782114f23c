//! The rejections and waits of single groups of a simulation.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::engine::Simulation;
use super::limits::limiter::Limiter;
use super::statistics::groups::Measured;
use super::statistics::groups::{GroupStats, GroupTable};
use crate::clients::Client;
use crate::report::model::GroupReport;
use weir_kubernetes::request_info::RequestKind;

/// What a group of requests has in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum GroupKind {
    /// The priority level; of max-in-flight, the request kind.
    Level,
    /// The flow schema.
    Schema,
    /// The user.
    User,
    /// A group of the user: the requests of all users who have it in some request.
    Group,
    /// The user agent.
    UserAgent,
}

/// A group of requests.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct GroupSelector {
    /// What its requests have in common.
    pub kind: GroupKind,
    /// The name of that.
    pub name: String,
}

impl GroupKind {
    /// All kinds.
    pub const ALL: [Self; 5] = [
        Self::Level,
        Self::Schema,
        Self::User,
        Self::Group,
        Self::UserAgent,
    ];

    /// The name in objectives.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Level => "level",
            Self::Schema => "schema",
            Self::User => "user",
            Self::Group => "group",
            Self::UserAgent => "user-agent",
        }
    }
}

/// What the requests of a user have had of a schema.
#[derive(Clone, Debug, PartialEq)]
pub struct MeasuredUsage {
    /// The schema.
    pub schema: String,
    /// Its level.
    pub level: String,
    /// The requests. The name is the user's.
    pub requests: GroupReport,
}

impl Simulation {
    /// Keeps the usage of schemas by users from now on.
    #[must_use]
    pub fn with_usage(mut self) -> Self {
        self.groups.by_schema_and_user = Some(BTreeMap::new());
        self
    }

    /// Lets all requests end. The usage, by schema and user. Empty with max-in-flight.
    #[must_use]
    pub fn usage(&mut self) -> Vec<MeasuredUsage> {
        self.run_to_the_end();
        let (Limiter::Fairness(fairness), Some(table)) =
            (&self.limiter, &self.groups.by_schema_and_user)
        else {
            return Vec::new();
        };
        let users = self.table.names().users;
        let usage = table.iter().filter_map(|((schema, user), stats)| {
            let (schema, level) = fairness.schema_names(usize::try_from(*schema).ok()?)?;
            let user = users.get(usize::try_from(*user).ok()?)?;
            Some(MeasuredUsage {
                schema: schema.to_owned(),
                level: level.to_owned(),
                requests: stats.report((**user).to_owned()),
            })
        });
        let mut usage: Vec<MeasuredUsage> = usage.collect();
        usage.sort_by(|a, b| (&a.schema, &a.requests.name).cmp(&(&b.schema, &b.requests.name)));
        usage
    }

    /// Lets all requests end, and measures groups; `None` is all requests.
    #[must_use]
    pub fn measure(&mut self, groups: &[Option<GroupSelector>]) -> Vec<Measured> {
        self.run_to_the_end();
        let measured = groups.iter().map(|group| {
            let mut sum = GroupStats::default();
            match group {
                // The group after the levels has what is not limited.
                None => (0..=self.limiter.level_count())
                    .for_each(|level| sum.merge(&self.groups.levels.get(level))),
                Some(group) => {
                    let table = self.group_table(group.kind);
                    let selected = self.selected(group).into_iter();
                    selected.for_each(|n| sum.merge(&table.get(n)));
                }
            }
            sum.measured()
        });
        measured.collect()
    }

    /// The entries of its table that a selector is about.
    fn selected(&self, group: &GroupSelector) -> BTreeSet<usize> {
        if group.kind == GroupKind::Group {
            let clients = self.clients();
            let members = clients.iter();
            let members = members.filter(|client| client.user.groups.contains(&group.name));
            return members.map(|client| user_number(client)).collect();
        }
        let names = self.group_names(group.kind);
        let named = names.iter().enumerate();
        let named = named.filter(|(_, name)| **name == group.name);
        named.map(|(n, _)| n).collect()
    }

    fn clients(&self) -> Vec<Arc<Client>> {
        let mut clients = Vec::new();
        self.table.extend(&mut clients);
        clients
    }

    /// The names of the groups of a kind that have requests, sorted.
    #[must_use]
    pub fn names_with_requests(&self, kind: GroupKind) -> Vec<String> {
        let table = self.group_table(kind);
        if kind == GroupKind::Group {
            let mut clients = self.clients();
            clients.retain(|client| !table.get(user_number(client)).is_empty());
            let names = clients.iter().flat_map(|client| &client.user.groups);
            let names: BTreeSet<&String> = names.collect();
            return names.into_iter().cloned().collect();
        }
        let names = self.group_names(kind).into_iter().enumerate();
        let mut names: Vec<String> = names
            .filter(|(n, _)| !table.get(*n).is_empty())
            .map(|(_, name)| name)
            .collect();
        names.sort();
        names.dedup();
        names
    }

    fn group_table(&self, kind: GroupKind) -> &GroupTable {
        match kind {
            GroupKind::Level => &self.groups.levels,
            GroupKind::Schema => &self.groups.schemas,
            GroupKind::User | GroupKind::Group => &self.groups.users,
            GroupKind::UserAgent => &self.groups.user_agents,
        }
    }

    /// The names of a table's entries, by their numbers.
    fn group_names(&self, kind: GroupKind) -> Vec<String> {
        let texts = |names: Vec<Arc<str>>| {
            let names = names.iter();
            names.map(|name| (**name).to_owned()).collect()
        };
        match (kind, &self.limiter) {
            (GroupKind::User | GroupKind::Group, _) => texts(self.table.names().users),
            (GroupKind::UserAgent, _) => texts(self.table.names().user_agents),
            (GroupKind::Level, Limiter::Fairness(fairness)) => {
                let levels = fairness.seats().iter();
                levels.map(|level| level.spec.name.clone()).collect()
            }
            (GroupKind::Level, Limiter::MaxInFlight(..)) => {
                // As the groups are numbered.
                let kinds = [RequestKind::ReadOnly, RequestKind::Mutating];
                kinds.map(|kind| kind.label().to_owned()).into()
            }
            (GroupKind::Schema, limiter) => {
                let Limiter::Fairness(fairness) = limiter else {
                    return Vec::new();
                };
                let schemas = (0..fairness.schema_count()).filter_map(|n| fairness.schema_names(n));
                schemas.map(|(schema, _)| schema.to_owned()).collect()
            }
        }
    }
}

fn user_number(client: &Client) -> usize {
    usize::try_from(client.user_name.0).unwrap_or(usize::MAX)
}
