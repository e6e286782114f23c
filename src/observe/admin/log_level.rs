//! The log filter at runtime: `GET` and `PUT /debug/log_level` on the admin listener.
//!
//! kube-apiserver has `PUT /debug/flags/v` for this. weir's filters express more than a number and
//! have the syntax of `--log-level`. An invalid filter changes nothing.

use parking_lot::{Mutex, MutexGuard};
use std::fmt;

use bytes::Bytes;
use http::{Method, Request, StatusCode};
use http_body::Body;
use http_body_util::{BodyExt, Limited};
use tracing::info;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::EnvFilter;

/// The path of the endpoint.
pub(crate) const PATH: &str = "/debug/log_level";

/// Longest filter in bytes: many times the length of a real one.
const MAX_FILTER_BYTES: usize = 4096;

/// Applies a filter to the subscriber.
type ApplyFilter = Box<dyn Fn(EnvFilter) -> Result<(), String> + Send + Sync>;

/// The filter in force.
pub struct LogLevel {
    /// The text of the filter. Locked while it is replaced, so that `GET` returns the filter in
    /// force.
    filter: Mutex<String>,
    apply: ApplyFilter,
}

impl LogLevel {
    /// Creates the state with the filter `initial`. `apply` puts another one in force.
    #[must_use]
    pub fn new(
        initial: &str,
        apply: impl Fn(EnvFilter) -> Result<(), String> + Send + Sync + 'static,
    ) -> Self {
        Self {
            filter: Mutex::new(initial.to_owned()),
            apply: Box::new(apply),
        }
    }

    /// Responds to `GET` with the filter, and to `PUT` after putting the request's filter in force.
    ///
    /// # Cancel safety
    /// The filter is either changed or not.
    pub(crate) async fn handle<B>(&self, request: Request<B>) -> (StatusCode, String)
    where
        B: Body<Data = Bytes>,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        match *request.method() {
            Method::GET | Method::HEAD => (StatusCode::OK, format!("{}\n", *self.lock_filter())),
            Method::PUT => {
                let body = Limited::new(request.into_body(), MAX_FILTER_BYTES)
                    .collect()
                    .await;
                let text = body.map(http_body_util::Collected::to_bytes);
                match text {
                    Ok(text) => self.set_filter(&text),
                    Err(why) => (StatusCode::BAD_REQUEST, format!("no filter: {why}\n")),
                }
            }
            _ => (
                StatusCode::METHOD_NOT_ALLOWED,
                "GET shows what is logged, PUT of a filter changes it\n".to_owned(),
            ),
        }
    }

    fn set_filter(&self, text: &[u8]) -> (StatusCode, String) {
        let text = String::from_utf8_lossy(text);
        let text = text.trim();
        let filter = match parse_filter(text) {
            Ok(filter) => filter,
            Err(why) => return (StatusCode::BAD_REQUEST, format!("{why}\n")),
        };
        match self.put_in_force(text, filter) {
            Ok(()) => (StatusCode::OK, format!("{text}\n")),
            Err(why) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{why}\n")),
        }
    }

    /// Puts another filter in force.
    ///
    /// # Errors
    /// The filter does not parse, or cannot be changed.
    pub(crate) fn set(&self, text: &str) -> Result<(), String> {
        let filter = parse_filter(text)?;
        self.put_in_force(text, filter)
    }

    fn put_in_force(&self, text: &str, filter: EnvFilter) -> Result<(), String> {
        let mut current = self.lock_filter();
        info!(from = %current, to = text, "what is logged changes");
        (self.apply)(filter)?;
        text.clone_into(&mut current);
        Ok(())
    }

    fn lock_filter(&self) -> MutexGuard<'_, String> {
        self.filter.lock()
    }
}

impl fmt::Debug for LogLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LogLevel({})", *self.lock_filter())
    }
}

/// Parses a filter such as `weir::upstream=debug,info`.
///
/// # Errors
/// The first invalid part, with the expected syntax. A single word must be a level: the library
/// takes `debgu` for a module of that name, and nothing would be logged any more.
pub(crate) fn parse_filter(text: &str) -> Result<EnvFilter, String> {
    let expected = "give LEVEL or MODULE=LEVEL, of off, error, warn, info and debug, as in weir::upstream=debug,info";
    if text.is_empty() {
        return Err(format!("no filter: {expected}"));
    }
    for part in text.split(',') {
        let level = part.rsplit_once('=').map_or(part, |(_, level)| level);
        let is_level = !level.is_empty() && level.parse::<LevelFilter>().is_ok();
        if !is_level || EnvFilter::try_new(part).is_err() {
            return Err(format!("{part:?} is no filter: {expected}"));
        }
    }
    EnvFilter::try_new(text).map_err(|why| format!("{why}: {expected}"))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use http_body_util::Full;

    use super::*;

    fn log_level() -> (LogLevel, Arc<Mutex<Vec<String>>>) {
        let applied = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&applied);
        let level = LogLevel::new("info", move |filter| {
            seen.lock().push(filter.to_string());
            Ok(())
        });
        (level, applied)
    }

    async fn send(level: &LogLevel, method: Method, body: &str) -> (u16, String) {
        let request = Request::builder().method(method);
        let request = request.body(Full::new(Bytes::from(body.to_owned())));
        let (code, text) = level.handle(request.unwrap()).await;
        (code.as_u16(), text)
    }

    #[tokio::test]
    async fn a_put_filter_is_applied_and_returned() {
        let (level, applied) = log_level();
        assert_eq!(send(&level, Method::GET, "").await, (200, "info\n".into()));
        let put = send(&level, Method::PUT, "weir::upstream=debug,warn\n").await;
        assert_eq!(put, (200, "weir::upstream=debug,warn\n".into()));
        assert_eq!(send(&level, Method::GET, "").await, put);
        assert_eq!(*applied.lock(), ["weir::upstream=debug,warn"]);
    }

    #[tokio::test]
    async fn an_invalid_filter_changes_nothing_and_is_explained() {
        let (level, applied) = log_level();
        let long = "weir=info,".repeat(1000);
        for (bad, part) in [
            ("", "no filter"),
            ("debgu", "\"debgu\""),
            ("weir=loud", "\"weir=loud\""),
            ("info,weir::upstream=", "\"weir::upstream=\""),
            ("info,,debug", "\"\""),
            (&*long, "length limit"),
        ] {
            let (code, text) = send(&level, Method::PUT, bad).await;
            assert_eq!(code, 400, "{bad}");
            assert!(text.contains(part), "{bad}: {text}");
        }
        assert_eq!(send(&level, Method::POST, "debug").await.0, 405);
        assert_eq!(send(&level, Method::GET, "").await.1, "info\n");
        assert!(applied.lock().is_empty());
    }
}
