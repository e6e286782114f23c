//! A controller as Crossplane's providers are, but for the limits that they set themselves: several workers reconcile the
//! objects of a kind as fast as they can, a reconcile is some reads and one write, and one that fails is tried again at
//! once. It knows no limit but what it is told by 429.

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::PostParams;
use kube::{Api, Client, Error};

/// Reads before each write, as a provider reads the object, what it refers to, and its secret.
const READS: usize = 4;

/// How soon a refused request is sent again.
const UNKNOWN_ALLOWED_BEFORE: Duration = Duration::from_millis(20);

/// What reached the API server, and when.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen {
    /// Reads that were served.
    pub(crate) reads: Vec<Instant>,
    /// Writes that were served or failed.
    pub(crate) writes: Vec<Instant>,
    /// The failed ones among them, each from when it was sent until it was answered.
    pub(crate) failures: Vec<Range<Instant>>,
    /// Requests that were refused with 429.
    pub(crate) refused: usize,
}

/// A controller at work.
#[derive(Clone)]
pub(crate) struct Controller {
    maps: Api<ConfigMap>,
    seen: Arc<Mutex<Seen>>,
}

impl Controller {
    /// For objects of a namespace.
    pub(crate) fn new(client: Client, namespace: &str) -> Self {
        Self {
            maps: Api::namespaced(client, namespace),
            seen: Arc::default(),
        }
    }

    /// What was seen so far.
    pub(crate) fn seen(&self) -> Seen {
        self.note(|seen| seen.clone())
    }

    fn note<T>(&self, with: impl FnOnce(&mut Seen) -> T) -> T {
        with(&mut self.seen.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Reconciles an object again and again, until the future is dropped. A broken one is written in a way that the server
    /// cannot take.
    ///
    /// # Errors
    /// Whatever is no answer of the server's.
    pub(crate) async fn reconcile(&self, name: &str, broken: bool) -> Result<(), Error> {
        loop {
            let mut object = None;
            for _ in 0..READS {
                match self.maps.get(name).await {
                    Ok(found) => {
                        self.note(|seen| seen.reads.push(Instant::now()));
                        object = Some(found);
                    }
                    Err(why) => self.refused(why).await?,
                }
            }
            let Some(mut object) = object else { continue };
            if broken {
                object.metadata.name = Some("another".to_owned());
            }
            let sent = Instant::now();
            let written = self
                .maps
                .replace(name, &PostParams::default(), &object)
                .await;
            match written {
                Ok(_) => self.note(|seen| seen.writes.push(Instant::now())),
                Err(Error::Api(status)) if status.code == 400 => self.note(|seen| {
                    let answered = Instant::now();
                    seen.writes.push(answered);
                    seen.failures.push(sent..answered);
                }),
                Err(why) => self.refused(why).await?,
            }
        }
    }

    async fn refused(&self, why: Error) -> Result<(), Error> {
        if !matches!(&why, Error::Api(status) if status.code == 429) {
            return Err(why);
        }
        self.note(|seen| seen.refused += 1);
        tokio::time::sleep(UNKNOWN_ALLOWED_BEFORE).await;
        Ok(())
    }
}
