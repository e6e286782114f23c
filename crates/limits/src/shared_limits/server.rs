//! Which server has the shared buckets: the value of `--shared-limits`. Pure.

use std::path::PathBuf;

use crate::shared_limits::key::SharedKey;

/// What a build without the feature `shared-limits` says of a server to share with.
pub const NO_CLIENT: &str =
    "this weir shares no limits: it was built without the cargo feature shared-limits";

/// The configuration of shared limits.
#[derive(Clone, Debug)]
pub struct SharedLimitsConfig {
    /// `--shared-limits`.
    pub server: SharedServer,
    /// `--shared-limits-user`.
    pub user: Option<String>,
    /// `--shared-limits-password-file`, read for each connection.
    pub password_file: Option<PathBuf>,
    /// `--shared-limits-ca-file`, read for each connection.
    pub ca_file: Option<PathBuf>,
    /// `--shared-limits-cert-file` and `--shared-limits-key-file`, read for each connection.
    pub certificate: Option<(PathBuf, PathBuf)>,
    /// `--shared-key-file`.
    pub key: SharedKey,
    /// `--shared-limits-replicas`: the number of replicas until the server has counted them.
    pub replicas: u32,
}

/// A server, or several that are one store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedServer {
    /// The servers as host and port; of a single server one.
    pub addresses: Vec<(String, u16)>,
    /// What the addresses are.
    pub topology: Topology,
    /// Whether connections use TLS.
    pub tls: bool,
    /// The number of the database.
    pub database: u16,
}

/// What the addresses are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Topology {
    /// One server.
    Single,
    /// Sentinels, which know the primary of this name.
    Sentinel(String),
    /// Members of a cluster.
    Cluster,
}

const SCHEMES: &str = "expected redis://HOST[:PORT][/DATABASE], rediss:// (TLS), \
    redis+sentinel://HOST[:PORT],.../NAME[/DATABASE] or redis+cluster://HOST[:PORT],... \
    (rediss+sentinel:// and rediss+cluster:// with TLS)";

const SERVER_PORT: u16 = 6379;
const SENTINEL_PORT: u16 = 26379;

impl SharedServer {
    /// Parses a URL.
    ///
    /// # Errors
    /// It is no such URL, or has a credential in it.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (scheme, rest) = text.split_once("://").ok_or(SCHEMES)?;
        let (tls, topology) = match scheme.strip_prefix("rediss") {
            Some(topology) => (true, topology),
            None => (false, scheme.strip_prefix("redis").ok_or(SCHEMES)?),
        };
        if rest.contains(['?', '#']) {
            return Err(
                "no query and no fragment are understood here: see the flags --shared-limits-…"
                    .to_owned(),
            );
        }
        let (hosts, path) = rest.split_once('/').unwrap_or((rest, ""));
        if hosts.contains('@') {
            return Err(
                "a credential in the URL is seen by everyone who sees the process: use \
                        --shared-limits-user and --shared-limits-password-file"
                    .to_owned(),
            );
        }
        let mut path = path.split('/');
        let (topology, port) = match topology {
            "" => (Topology::Single, SERVER_PORT),
            "+cluster" => (Topology::Cluster, SERVER_PORT),
            "+sentinel" => match path.next() {
                Some(name) if !name.is_empty() => {
                    (Topology::Sentinel(name.to_owned()), SENTINEL_PORT)
                }
                _ => {
                    return Err("redis+sentinel:// needs the name of the primary: /NAME".to_owned());
                }
            },
            _ => return Err(SCHEMES.to_owned()),
        };
        let database = match path.next().unwrap_or_default() {
            "" => 0,
            text => text
                .parse()
                .map_err(|_| format!("the database {text:?} is not a number"))?,
        };
        if path.next().is_some() {
            return Err(SCHEMES.to_owned());
        }
        if topology == Topology::Cluster && database != 0 {
            return Err("a cluster has the database 0 only".to_owned());
        }
        let addresses: Vec<_> = hosts
            .split(',')
            .map(|host| parse_address(host, port))
            .collect::<Result<_, _>>()?;
        if topology == Topology::Single && addresses.len() > 1 {
            return Err("several servers are redis+sentinel:// or redis+cluster://".to_owned());
        }
        Ok(Self {
            addresses,
            topology,
            tls,
            database,
        })
    }

    /// Whether connections use TLS.
    #[must_use]
    pub const fn uses_tls(&self) -> bool {
        self.tls
    }

    /// The servers, for operators.
    #[must_use]
    pub fn display_name(&self) -> String {
        let host = |(host, port): &(String, u16)| {
            if host.contains(':') {
                format!("[{host}]:{port}")
            } else {
                format!("{host}:{port}")
            }
        };
        let hosts: Vec<_> = self.addresses.iter().map(host).collect();
        hosts.join(",")
    }
}

fn parse_address(text: &str, default_port: u16) -> Result<(String, u16), String> {
    let wrong = || format!("{text:?} is not HOST, HOST:PORT or [IPV6]:PORT");
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (host, port) = rest.split_once(']').ok_or_else(wrong)?;
            (
                host,
                port.strip_prefix(':')
                    .or_else(|| port.is_empty().then_some("")),
            )
        }
        None => match text.split_once(':') {
            Some((host, port)) => (host, Some(port).filter(|port| !port.is_empty())),
            None => (text, Some("")),
        },
    };
    let port = match port.ok_or_else(wrong)? {
        "" => default_port,
        port => port.parse().map_err(|_| wrong())?,
    };
    if host.is_empty() || port == 0 || host.contains(|c: char| c.is_whitespace()) {
        return Err(wrong());
    }
    Ok((host.to_owned(), port))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> (String, Topology, bool, u16) {
        let server = SharedServer::parse(text).unwrap();
        (
            server.display_name(),
            server.topology,
            server.tls,
            server.database,
        )
    }

    #[test]
    fn all_kinds_of_servers_are_parsed() {
        let single = |name: &str, tls, database| (name.to_owned(), Topology::Single, tls, database);
        assert_eq!(parse("redis://r"), single("r:6379", false, 0));
        assert_eq!(parse("redis://r:1/"), single("r:1", false, 0));
        assert_eq!(parse("rediss://[::1]:7/3"), single("[::1]:7", true, 3));
        assert_eq!(
            parse("redis+sentinel://a,b:5/main/2"),
            (
                "a:26379,b:5".to_owned(),
                Topology::Sentinel("main".to_owned()),
                false,
                2
            )
        );
        assert_eq!(
            parse("rediss+cluster://a,b"),
            ("a:6379,b:6379".to_owned(), Topology::Cluster, true, 0)
        );
    }

    #[test]
    fn what_is_wrong_with_a_url_is_said() {
        for (text, expected) in [
            ("http://r", "expected redis://"),
            ("r:6379", "expected redis://"),
            ("redis+ring://r", "expected redis://"),
            ("redis://r/0/1", "expected redis://"),
            ("redis://u:p@r", "a credential in the URL"),
            ("redis://r/0?password=s3cret", "no query and no fragment"),
            ("redis://r?password=s3cret", "no query and no fragment"),
            ("redis://r/x", "the database \"x\" is not a number"),
            ("redis://", "\"\" is not HOST"),
            ("redis://r:0", "\"r:0\" is not HOST"),
            ("redis://r:99999", "\"r:99999\" is not HOST"),
            ("redis://r:", "\"r:\" is not HOST"),
            ("redis://[::1", "\"[::1\" is not HOST"),
            ("redis://a,b", "several servers are"),
            ("redis+sentinel://a", "needs the name of the primary"),
            ("redis+cluster://a/1", "a cluster has the database 0 only"),
        ] {
            let error = SharedServer::parse(text).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
            assert!(!error.contains("s3cret"), "{error}");
        }
    }
}
