//! A handler that continues when its client disconnects.

use crate::serving::response_body::TrackedBody;
use crate::state::ServerState;
use http::Response;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::runtime::Handle;

/// The future of a handler. When it is dropped, the handler continues in a task of its own: a Go
/// handler is a goroutine, and only its context or a failed write shows that the client has
/// disconnected.
pub(super) struct HandlerFuture<F>
where
    F: Future<Output = Response<TrackedBody>> + Send + 'static,
{
    state: Arc<ServerState>,
    work: Option<Pin<Box<F>>>,
}

impl<F> HandlerFuture<F>
where
    F: Future<Output = Response<TrackedBody>> + Send + 'static,
{
    pub(super) fn new(state: Arc<ServerState>, work: F) -> Self {
        Self {
            state,
            work: Some(Box::pin(work)),
        }
    }
}

impl<F> Future for HandlerFuture<F>
where
    F: Future<Output = Response<TrackedBody>> + Send + 'static,
{
    type Output = Response<TrackedBody>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Response<TrackedBody>> {
        let Some(work) = &mut self.work else {
            return Poll::Pending;
        };
        let response = work.as_mut().poll(context);
        if response.is_ready() {
            self.work = None;
        }
        response
    }
}

impl<F> Drop for HandlerFuture<F>
where
    F: Future<Output = Response<TrackedBody>> + Send + 'static,
{
    fn drop(&mut self) {
        let (Some(work), Ok(runtime)) = (self.work.take(), Handle::try_current()) else {
            return;
        };
        let abandoned = self.state.request_log.track_abandoned();
        let mut stopping = self.state.stopping.subscribe();
        runtime.spawn(async move {
            tokio::select! {
                // The body of the response continues by itself.
                response = work => drop(response),
                _ = stopping.wait_for(|stopping| *stopping) => {}
            }
            drop(abandoned);
        });
    }
}
