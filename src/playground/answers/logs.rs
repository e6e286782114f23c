//! `pods/log`: lines that nobody wrote, at a steady pace if they are followed.

use crate::playground::answers::Answer;
use crate::playground::answers::reply;
use crate::playground::objects::resources::Kind;
use crate::playground::objects::store::Object;
use crate::playground::objects::store::text_at;
use crate::playground::request::Query;
use crate::playground::request::Target;
use crate::playground::state::State;
use crate::playground::status::Status;
use crate::playground::time;
use bytes::Bytes;
use futures_util::stream;
use serde_json::Value;
use std::sync::Arc;
use tokio::sync::watch;

/// How many lines a pod has written before anyone asks.
const LINES: usize = 10;

/// One reader of a log.
#[derive(Debug)]
struct Tail {
    state: Arc<State>,
    namespace: String,
    pod: String,
    container: String,
    timestamps: bool,
    follow: bool,
    /// The number of the next line.
    next: usize,
    /// Bytes that may still be sent.
    left: Option<usize>,
    stopping: watch::Receiver<bool>,
}

pub(crate) fn answer(state: &Arc<State>, target: &Target, query: &Query) -> Answer {
    let pod = pod(state, target)?;
    let container = container(&pod, query)?;
    let tail: usize = query.number("tailLines")?.unwrap_or(LINES);
    let tail = Tail {
        state: Arc::clone(state),
        namespace: target.namespace.clone(),
        pod: target.name.clone(),
        container,
        timestamps: query.flag("timestamps"),
        follow: query.flag("follow"),
        next: LINES.saturating_sub(tail),
        left: query.number("limitBytes")?,
        stopping: state.stopping.subscribe(),
    };
    let lines = stream::unfold(tail, |mut tail| async {
        let lines = tail.next().await?;
        Some((lines, tail))
    });
    Ok(reply::endless("text/plain", lines))
}

/// The pod that the path names.
pub(crate) fn pod(state: &State, target: &Target) -> Result<Arc<Object>, Status> {
    let store = state.storage.read();
    let pod = store.get(Kind::Pod, &target.namespace, &target.name);
    pod.cloned()
        .ok_or_else(|| Status::not_found(target.resource.subject(&target.name)))
}

/// The container that is meant: the named one, or the only one.
pub(crate) fn container(pod: &Object, query: &Query) -> Result<String, Status> {
    let value = pod.value();
    let containers = value.pointer("/spec/containers").and_then(Value::as_array);
    let names: Vec<&str> = containers
        .into_iter()
        .flatten()
        .map(|container| text_at(container, &["name"]))
        .collect();
    let pod = &pod.name;
    match (query.first("container"), names.as_slice()) {
        (Some(asked), names) if names.contains(&asked) => Ok(asked.to_owned()),
        (Some(asked), _) => {
            let message = format!("container {asked} is not valid for pod {pod}");
            Err(Status::bad_request(message))
        }
        (None, [only]) => Ok((*only).to_owned()),
        (None, names) => Err(Status::bad_request(format!(
            "a container name must be specified for pod {pod}, choose one of: [{}]",
            names.join(" ")
        ))),
    }
}

impl Tail {
    /// The next lines, or `None` at the end.
    ///
    /// Cancel safety: a line that was not returned comes again.
    async fn next(&mut self) -> Option<Bytes> {
        if self.left == Some(0) {
            return None;
        }
        let mut text = String::new();
        if self.next < LINES {
            while self.next < LINES {
                self.line(&mut text);
            }
        } else if self.follow {
            tokio::select! {
                () = tokio::time::sleep(self.state.settings.log_interval) => {}
                _ = self.stopping.wait_for(|stopping| *stopping) => return None,
            }
            // A log ends with its pod.
            self.state
                .storage
                .read()
                .get(Kind::Pod, &self.namespace, &self.pod)?;
            self.line(&mut text);
        } else {
            return None;
        }
        if let Some(left) = &mut self.left {
            text.truncate(*left);
            *left -= text.len();
        }
        Some(text.into())
    }

    fn line(&mut self, text: &mut String) {
        if self.timestamps {
            text.push_str(&time::wall().to_string());
            text.push(' ');
        }
        let (pod, container, number) = (&self.pod, &self.container, self.next);
        text.push_str(&format!("{pod}/{container}: line {number}\n"));
        self.next += 1;
    }
}
