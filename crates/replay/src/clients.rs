//! The clients of a log: users, user agents and addresses, each stored once; and the names of flow
//! schemas.
//!
//! Several threads parse a log, and one replays it. A thread that parses looks a client up in its
//! own cache first, and takes the lock of the table for a new one only. The numbers of clients
//! depend on which thread is first, so nothing is decided by them.

use std::collections::{HashMap, HashSet};
use std::hash::{Hash, Hasher};
use std::num::NonZeroU16;
use std::sync::Arc;

use foldhash::fast::RandomState;
use parking_lot::Mutex;

use weir_kubernetes::api::UserInfo;

/// The most user agents, and the most addresses, that are distinguished: more than a cluster has.
/// Those beyond count as one.
const MAX_NAMES: usize = 20_000;

/// The most combinations of user, user agent and address. Beyond, only users are distinguished.
const MAX_CLIENTS: usize = 200_000;

/// The name of all that are not distinguished.
const OTHERS: &str = "(others)";

/// A client, by its number in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ClientId(pub u32);

/// A name, by its number in its list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NameId(pub u32);

/// A flow schema, by its number in the table. The first is 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SchemaId(NonZeroU16);

/// What is known of a client.
#[derive(Clone, Debug, PartialEq)]
pub struct Client {
    /// The user, as limits see it. All clients of a user share it.
    pub user: Arc<UserInfo>,
    /// The header `User-Agent`. Empty if not known.
    pub user_agent: Arc<str>,
    /// The address. Empty if not known.
    pub source: Arc<str>,
    /// The number of the user's name.
    pub user_name: NameId,
    /// The number of the user agent.
    pub user_agent_name: NameId,
    /// The number of the address.
    pub source_name: NameId,
}

/// All clients of a log.
#[derive(Debug, Default)]
pub struct ClientTable(Mutex<Tables>);

/// The names of each kind, by their numbers.
#[derive(Clone, Debug, Default)]
pub struct ClientNames {
    /// The names of users.
    pub users: Vec<Arc<str>>,
    /// The user agents.
    pub user_agents: Vec<Arc<str>>,
    /// The addresses.
    pub sources: Vec<Arc<str>>,
}

#[derive(Debug, Default)]
struct Tables {
    clients: Vec<Arc<Client>>,
    numbers: HashMap<ClientKey, ClientId, RandomState>,
    known_users: HashSet<KnownUser, RandomState>,
    users: Names,
    user_agents: Names,
    sources: Names,
    schemas: Names,
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct ClientKey {
    user: KnownUser,
    user_agent: NameId,
    source: NameId,
}

/// A user, by all that schemas and limits may look at.
#[derive(Clone, Debug)]
struct KnownUser(Arc<UserInfo>);

impl KnownUser {
    fn key(&self) -> (&str, &str, &[String]) {
        (&self.0.name, &self.0.uid, &self.0.groups)
    }
}

impl PartialEq for KnownUser {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || self.key() == other.key()
    }
}

impl Eq for KnownUser {}

impl Hash for KnownUser {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.key().hash(state);
    }
}

#[derive(Debug, Default)]
struct Names {
    names: Vec<Arc<str>>,
    numbers: HashMap<Arc<str>, NameId, RandomState>,
}

impl Names {
    /// The number of a name. Beyond `limit` names, that of all others.
    fn number(&mut self, name: &str, limit: usize) -> NameId {
        if let Some(number) = self.numbers.get(name) {
            return *number;
        }
        let name = if self.names.len() < limit {
            name
        } else {
            OTHERS
        };
        if let Some(number) = self.numbers.get(name) {
            return *number;
        }
        let number = NameId(u32::try_from(self.names.len()).unwrap_or(u32::MAX));
        let name: Arc<str> = name.into();
        self.names.push(Arc::clone(&name));
        self.numbers.insert(name, number);
        number
    }

    fn name(&self, number: NameId) -> Arc<str> {
        let at = usize::try_from(number.0).unwrap_or(usize::MAX);
        self.names.get(at).cloned().unwrap_or_else(|| OTHERS.into())
    }
}

impl ClientTable {
    /// The number of a client.
    pub fn intern(&self, user: UserInfo, user_agent: &str, source: &str) -> ClientId {
        let mut tables = self.0.lock();
        let tables = &mut *tables;
        let full = tables.clients.len() >= MAX_CLIENTS;
        let (user_agent, source) = if full {
            (OTHERS, OTHERS)
        } else {
            (user_agent, source)
        };
        let user_agent_name = tables.user_agents.number(user_agent, MAX_NAMES);
        let source_name = tables.sources.number(source, MAX_NAMES);
        let user = KnownUser(Arc::new(user));
        let user = match tables.known_users.get(&user) {
            Some(known) => known.clone(),
            None => {
                tables.known_users.insert(user.clone());
                user
            }
        };
        let key = ClientKey {
            user: user.clone(),
            user_agent: user_agent_name,
            source: source_name,
        };
        if let Some(number) = tables.numbers.get(&key) {
            return *number;
        }
        let client = Client {
            user_name: tables.users.number(&user.0.name, usize::MAX),
            user_agent: tables.user_agents.name(user_agent_name),
            source: tables.sources.name(source_name),
            user: user.0,
            user_agent_name,
            source_name,
        };
        let number = ClientId(u32::try_from(tables.clients.len()).unwrap_or(u32::MAX));
        tables.clients.push(Arc::new(client));
        tables.numbers.insert(key, number);
        number
    }

    /// The number of a flow schema. `None` beyond 65,535.
    pub fn intern_schema(&self, name: &str) -> Option<SchemaId> {
        let most = usize::from(u16::MAX);
        let mut tables = self.0.lock();
        let schemas = &mut tables.schemas;
        if schemas.names.len() >= most && !schemas.numbers.contains_key(name) {
            return None;
        }
        let number = u16::try_from(schemas.number(name, most).0).ok()?;
        NonZeroU16::new(number.checked_add(1)?).map(SchemaId)
    }

    /// The name of a flow schema.
    #[must_use]
    pub fn schema_name(&self, schema: SchemaId) -> Option<Arc<str>> {
        let at = usize::from(schema.0.get()) - 1;
        self.0.lock().schemas.names.get(at).cloned()
    }

    /// Appends the clients that `known` lacks.
    pub fn extend(&self, known: &mut Vec<Arc<Client>>) {
        let tables = self.0.lock();
        if let Some(new) = tables.clients.get(known.len()..) {
            known.extend(new.iter().map(Arc::clone));
        }
    }

    /// All names.
    #[must_use]
    pub fn names(&self) -> ClientNames {
        let tables = self.0.lock();
        ClientNames {
            users: tables.users.names.clone(),
            user_agents: tables.user_agents.names.clone(),
            sources: tables.sources.names.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_is_stored_once_for_all_its_agents_and_addresses() {
        let table = ClientTable::default();
        let user = |group: &str| UserInfo {
            name: "alice".to_owned(),
            groups: vec![group.to_owned()],
            ..UserInfo::default()
        };
        for source in ["192.0.2.1", "192.0.2.2", "192.0.2.1"] {
            table.intern(user("devs"), "kubectl", source);
        }
        table.intern(user("admins"), "kubectl", "192.0.2.1");
        let mut clients = Vec::new();
        table.extend(&mut clients);
        let [one, other, admin] = &*clients else {
            panic!("{clients:?}");
        };
        assert!(Arc::ptr_eq(&one.user, &other.user));
        assert_eq!(
            (&*other.source, &*admin.user),
            ("192.0.2.2", &user("admins"))
        );
        assert_eq!(one.user_name, admin.user_name);
    }
}
