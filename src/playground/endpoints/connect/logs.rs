//! `pods/log`: lines that nobody wrote, at a steady pace if they are followed.

use crate::playground::endpoints::HandlerResult;
use crate::playground::endpoints::response;
use crate::playground::objects::resources::ObjectKind;
use crate::playground::objects::storage::store::StoredObject;
use crate::playground::objects::storage::store::string_at;
use crate::playground::request::QueryParameters;
use crate::playground::request::ResourceTarget;
use crate::playground::state::ServerState;
use crate::playground::status::StatusError;
use crate::playground::time;
use bytes::Bytes;
use futures_util::stream;
use serde_json::Value;
use std::sync::Arc;
use tokio::sync::watch;

/// How many lines a pod has written before anyone asks.
const INITIAL_LINES: usize = 10;

/// One reader of a log.
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
    /// Bytes that may still be sent.
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

/// The pod that the path names.
pub(crate) fn find_pod(
    state: &ServerState,
    target: &ResourceTarget,
) -> Result<Arc<StoredObject>, StatusError> {
    let store = state.storage.lock();
    let pod = store.get(ObjectKind::Pod, &target.namespace, &target.name);
    pod.cloned()
        .ok_or_else(|| StatusError::not_found(target.resource.resource_ref(&target.name)))
}

/// The container that is meant: the named one, or the only one.
pub(crate) fn find_container(
    pod: &StoredObject,
    query: &QueryParameters,
) -> Result<String, StatusError> {
    let value = pod.value();
    let containers = value.pointer("/spec/containers").and_then(Value::as_array);
    let names: Vec<&str> = containers
        .into_iter()
        .flatten()
        .map(|container| string_at(container, &["name"]))
        .collect();
    let pod = &pod.name;
    match (query.first("container"), names.as_slice()) {
        (Some(asked), names) if names.contains(&asked) => Ok(asked.to_owned()),
        (Some(asked), _) => {
            let message = format!("container {asked} is not valid for pod {pod}");
            Err(StatusError::bad_request(message))
        }
        (None, [only]) => Ok((*only).to_owned()),
        (None, names) => Err(StatusError::bad_request(format!(
            "a container name must be specified for pod {pod}, choose one of: [{}]",
            names.join(" ")
        ))),
    }
}

impl LogTail {
    /// The next lines, or `None` at the end.
    ///
    /// Cancel safety: a line that was not returned comes again.
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
            // A log ends with its pod.
            self.state
                .storage
                .lock()
                .get(ObjectKind::Pod, &self.namespace, &self.pod)?;
            self.push_line(&mut text);
        } else {
            return None;
        }
        if let Some(left) = &mut self.remaining_bytes {
            text.truncate(*left);
            *left -= text.len();
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
