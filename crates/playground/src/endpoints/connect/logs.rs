//! `pods/log`: generated lines, at a steady rate if the log is followed.

use crate::endpoints::connect::pods::{find_container, find_pod};
use crate::endpoints::response;
use crate::endpoints::response::HandlerResult;
use crate::objects::resources::ObjectKind;
use crate::request::{QueryParameters, ResourceTarget};
use crate::state::ServerState;
use crate::time;
use bytes::Bytes;
use futures_util::stream;
use std::sync::Arc;
use tokio::sync::watch;

/// Number of lines that each pod has written at the start.
const INITIAL_LINES: usize = 10;

/// A request for a log.
#[derive(Debug)]
struct LogTail {
    state: Arc<ServerState>,
    namespace: String,
    pod: String,
    container: String,
    timestamps: bool,
    follow: bool,
    /// The number of the next line.
    next_line: usize,
    /// Number of bytes that may still be sent; `None` for no limit.
    remaining_bytes: Option<usize>,
    stopping: watch::Receiver<bool>,
}

pub(crate) fn handle(
    state: &Arc<ServerState>,
    target: &ResourceTarget,
    query: &QueryParameters,
) -> HandlerResult {
    let pod = find_pod(state, target)?;
    let container = find_container(&pod, query)?;
    let tail: usize = query.number("tailLines")?.unwrap_or(INITIAL_LINES);
    let tail = LogTail {
        state: Arc::clone(state),
        namespace: target.namespace.clone(),
        pod: target.name.clone(),
        container,
        timestamps: query.flag("timestamps"),
        follow: query.flag("follow"),
        next_line: INITIAL_LINES.saturating_sub(tail),
        remaining_bytes: query.number("limitBytes")?,
        stopping: state.stopping.subscribe(),
    };
    let lines = stream::unfold(tail, |mut tail| async {
        let lines = tail.next_lines().await?;
        Some((lines, tail))
    });
    Ok(response::streaming("text/plain", lines))
}

impl LogTail {
    /// The next lines, or `None` at the end.
    ///
    /// Cancel safety: a line that was not returned is returned by the next call.
    async fn next_lines(&mut self) -> Option<Bytes> {
        if self.remaining_bytes == Some(0) {
            return None;
        }
        let mut text = String::new();
        if self.next_line < INITIAL_LINES {
            while self.next_line < INITIAL_LINES {
                self.push_line(&mut text);
            }
        } else if self.follow {
            tokio::select! {
                () = tokio::time::sleep(self.state.settings.log_interval) => {}
                _ = self.stopping.wait_for(|stopping| *stopping) => return None,
            }
            // A log ends when its pod is deleted.
            self.state
                .storage
                .lock()
                .get(ObjectKind::Pod, &self.namespace, &self.pod)?;
            self.push_line(&mut text);
        } else {
            return None;
        }
        if let Some(remaining) = &mut self.remaining_bytes {
            text.truncate(*remaining);
            *remaining -= text.len();
        }
        Some(text.into())
    }

    fn push_line(&mut self, text: &mut String) {
        if self.timestamps {
            text.push_str(&time::wall_time().to_string());
            text.push(' ');
        }
        let (pod, container, number) = (&self.pod, &self.container, self.next_line);
        text.push_str(&format!("{pod}/{container}: line {number}\n"));
        self.next_line += 1;
    }
}
