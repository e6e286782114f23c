//! What an error of the server of the shared buckets means, for operators. Pure.

use redis::{ErrorKind, RedisError, ServerErrorKind};

/// What an error means, and what would be right.
#[must_use]
pub(super) fn describe(error: &RedisError) -> String {
    let text = error.to_string();
    let has = |word: &str| text.contains(word) || error.code() == Some(word);
    let meaning = if is_login_failure(error) {
        "it rejects the user or the password (--shared-limits-user, --shared-limits-password-file)"
    } else if has("NOPERM") || text.contains("The user executing the script can't") {
        "the user may not run scripts on keys weir:* (ACL: ~weir:* +@scripting +@read +@write +time)"
    } else if has("READONLY") {
        "it is read-only: name the primary"
    } else if has("OOM") {
        "its memory is full (maxmemory)"
    } else if has("LOADING") {
        "it is loading its data"
    } else if error.kind() == ErrorKind::MasterNameNotFoundBySentinel {
        "the Sentinels know no primary of this name, or it is none at this moment"
    } else if has("CLUSTERDOWN") || error.kind() == ErrorKind::ClusterConnectionNotFound {
        "the cluster does not serve all of its slots"
    } else if error.kind() == ErrorKind::Server(ServerErrorKind::Moved) {
        "the member of the cluster that has a key cannot be reached"
    } else if has("cluster support disabled") {
        "it is not a cluster: use redis:// or rediss://"
    } else if has("does not point to a sentinel") {
        "it is not a Sentinel: name the Sentinels' ports, or use redis:// or rediss://"
    } else if has("UnknownIssuer") || has("invalid peer certificate") {
        "its certificate is not valid for this name, or its CA is not that of --shared-limits-ca-file"
    } else if has("InvalidContentType") {
        "it speaks no TLS: use redis:// instead of rediss://"
    } else if error.is_timeout() || has("timed out") {
        "no answer within 500 ms; with rediss:// it has to be a port with TLS"
    } else if error.is_connection_refusal() || has("Connection refused") {
        "nothing listens there"
    } else if error.is_connection_dropped() {
        "the connection was closed"
    } else {
        return text;
    };
    format!("{meaning} ({text})")
}

/// Whether the server rejects the user or the password.
#[must_use]
pub(super) fn is_login_failure(error: &RedisError) -> bool {
    let text = error.to_string();
    let has = |word: &str| text.contains(word) || error.code() == Some(word);
    // A cluster's errors have those of its members as texts.
    error.kind() == ErrorKind::AuthenticationFailed
        || has("AuthenticationFailed")
        || has("WRONGPASS")
        || has("NOAUTH")
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[test]
    fn each_error_says_what_would_be_right() {
        let server = |kind, text| RedisError::from((ErrorKind::Server(kind), text));
        let client = |text| RedisError::from((ErrorKind::InvalidClientConfig, text));
        let member = |text: &str| {
            let failed = "Failed to create initial connections";
            RedisError::from((ErrorKind::Io, failed, text.to_owned()))
        };
        let io = |kind: io::ErrorKind| RedisError::from(io::Error::from(kind));
        for (error, expected) in [
            (
                (ErrorKind::AuthenticationFailed, "x").into(),
                "it rejects the user",
            ),
            (server(ServerErrorKind::NoPerm, "x"), "may not run scripts"),
            (server(ServerErrorKind::ReadOnly, "x"), "it is read-only"),
            (server(ServerErrorKind::BusyLoading, "x"), "it is loading"),
            (
                (ErrorKind::MasterNameNotFoundBySentinel, "x").into(),
                "the Sentinels know no primary",
            ),
            (
                client("Address does not point to a sentinel node"),
                "it is not a Sentinel",
            ),
            (
                server(ServerErrorKind::ClusterDown, "x"),
                "the cluster does not serve",
            ),
            (
                server(ServerErrorKind::Moved, "9150 h:1"),
                "the member of the cluster that has a key",
            ),
            (
                server(
                    ServerErrorKind::ResponseError,
                    "This instance has cluster support disabled",
                ),
                "it is not a cluster",
            ),
            (
                (ErrorKind::ClusterConnectionNotFound, "x").into(),
                "the cluster does not serve",
            ),
            (
                member("Password authentication failed - AuthenticationFailed"),
                "it rejects the user",
            ),
            (
                member("Connection refused (os error 111)"),
                "nothing listens",
            ),
            (member("timed out"), "no answer within"),
            (io(io::ErrorKind::TimedOut), "no answer within"),
            (io(io::ErrorKind::ConnectionRefused), "nothing listens"),
            (io(io::ErrorKind::BrokenPipe), "the connection was closed"),
            (client("something else"), "something else"),
        ] {
            let said = describe(&error);
            assert!(said.contains(expected), "{said}");
        }
    }
}
