//! Connections whose handshake is not over yet, by where they are from.
//!
//! Nobody is known before that, and what says nothing stays for a whole handshake's time. At `--max-connections` they are
//! therefore not a reason to turn others away: whoever has the most of them makes room for who has fewer.

use std::collections::BTreeMap;
use std::collections::HashMap;
use std::future::Future;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;

use tokio::sync::watch;

use crate::metrics::Counted;
use crate::server::gate::Origin;

/// Who has how many. Pure; `T` tells a connection to go.
#[derive(Debug)]
struct Crowd<T> {
    origins: HashMap<Origin, BTreeMap<u64, T>>,
    /// How many have come so far: the next one's number.
    came: u64,
}

impl<T> Crowd<T> {
    fn enter(&mut self, origin: Origin, connection: T) -> u64 {
        let number = self.came;
        self.came += 1;
        self.insert(origin, number, connection);
        number
    }

    fn insert(&mut self, origin: Origin, number: u64, connection: T) {
        self.origins
            .entry(origin)
            .or_default()
            .insert(number, connection);
    }

    fn leave(&mut self, origin: Origin, number: u64) -> Option<T> {
        let line = self.origins.get_mut(&origin)?;
        let connection = line.remove(&number);
        if line.is_empty() {
            self.origins.remove(&origin);
        }
        connection
    }

    /// Takes out the last of who has most, if that is still no fewer than `origin` has with one more: nobody gains by
    /// coming again.
    fn make_room(&mut self, origin: Origin) -> Option<T> {
        let own = self.origins.get(&origin).map_or(0, BTreeMap::len);
        let (&most, line) = self.origins.iter().max_by_key(|(_, line)| line.len())?;
        if line.len() <= own + 1 {
            return None;
        }
        let (&last, _) = line.last_key_value()?;
        self.leave(most, last)
    }
}

/// All of them, over all workers.
#[derive(Debug)]
pub struct Newcomers {
    /// Held for one step of a connection; nothing is awaited, and nobody told, under it.
    crowd: Mutex<Crowd<watch::Sender<()>>>,
}

impl Newcomers {
    /// Nobody there.
    #[must_use]
    pub fn none() -> Arc<Self> {
        Arc::new(Self {
            crowd: Mutex::new(Crowd {
                origins: HashMap::new(),
                came: 0,
            }),
        })
    }

    /// A connection has been accepted, which is `counted` for as long as it is one of these.
    #[must_use]
    pub fn enter(self: &Arc<Self>, origin: Origin, counted: Option<Counted>) -> Newcomer {
        let (tells, told) = watch::channel(());
        Newcomer {
            origin,
            number: self.crowd().enter(origin, tells),
            told,
            newcomers: Arc::clone(self),
            _counted: counted,
        }
    }

    /// Lets one go for the sake of one from `origin`, and waits until it has; `false` if nobody has to.
    ///
    /// # Cancel safety
    /// Who was told goes, whether it is waited for or not.
    pub async fn make_room(&self, origin: Origin) -> bool {
        let Some(goes) = self.displaced(origin) else {
            return false;
        };
        goes.send_replace(());
        goes.closed().await;
        true
    }

    fn displaced(&self, origin: Origin) -> Option<watch::Sender<()>> {
        self.crowd().make_room(origin)
    }

    fn crowd(&self) -> MutexGuard<'_, Crowd<watch::Sender<()>>> {
        self.crowd.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One of them, until it is dropped: when its handshake is over, or its socket closed.
#[derive(Debug)]
pub struct Newcomer {
    origin: Origin,
    number: u64,
    told: watch::Receiver<()>,
    newcomers: Arc<Newcomers>,
    _counted: Option<Counted>,
}

impl Newcomer {
    /// A proxy has told where it is really from.
    pub fn is_from(&mut self, origin: Origin) {
        let mut crowd = self.newcomers.crowd();
        if let Some(connection) = crowd.leave(self.origin, self.number) {
            crowd.insert(origin, self.number, connection);
        }
        self.origin = origin;
    }

    /// Comes when it is to go.
    ///
    /// # Cancel safety
    /// Nothing is lost.
    pub fn displaced(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut told = self.told.clone();
        async move {
            // Fails if the sender has gone, which goes only after it told so, or with the newcomer.
            let _ = told.changed().await;
        }
    }
}

impl Drop for Newcomer {
    fn drop(&mut self) {
        drop(self.newcomers.crowd().leave(self.origin, self.number));
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use futures_util::FutureExt;

    use super::*;

    fn from(n: u8) -> Origin {
        Origin::of(IpAddr::from([10, 0, 0, n]))
    }

    #[tokio::test]
    async fn the_last_of_who_has_most_goes() {
        let newcomers = Newcomers::none();
        let few = [
            newcomers.enter(from(1), None),
            newcomers.enter(from(1), None),
        ];
        let many = [0; 3].map(|_| newcomers.enter(from(2), None));
        let goes = newcomers.displaced(from(3)).unwrap();
        goes.send_replace(());
        let told = |newcomer: &Newcomer| newcomer.displaced().now_or_never().is_some();
        assert_eq!(many.each_ref().map(told), [false, false, true]);
        assert_eq!(few.each_ref().map(told), [false, false]);
    }

    #[tokio::test]
    async fn room_is_there_when_the_one_who_goes_has_gone() {
        let newcomers = Newcomers::none();
        let _stays = newcomers.enter(from(1), None);
        let goes = newcomers.enter(from(1), None);
        let mut room = Box::pin(newcomers.make_room(from(2)));
        assert_eq!(room.as_mut().now_or_never(), None);
        goes.displaced().await;
        assert_eq!(room.as_mut().now_or_never(), None);
        drop(goes);
        assert!(room.await);
    }

    #[tokio::test]
    async fn nobody_goes_for_who_would_have_as_many_then() {
        let newcomers = Newcomers::none();
        let room = |origin| newcomers.make_room(origin).now_or_never();
        assert_eq!(room(from(1)), Some(false), "nobody is there");
        let _other = [
            newcomers.enter(from(2), None),
            newcomers.enter(from(2), None),
        ];
        let _own = newcomers.enter(from(1), None);
        assert_eq!(room(from(1)), Some(false));
        assert_eq!(room(from(2)), Some(false), "for its own");
    }

    #[tokio::test]
    async fn who_is_behind_a_proxy_counts_where_it_is_from() {
        let newcomers = Newcomers::none();
        let mut behind = [0; 4].map(|_| newcomers.enter(from(9), None));
        for newcomer in &mut behind {
            newcomer.is_from(from(1));
        }
        assert!(newcomers.displaced(from(9)).is_some());
        assert!(newcomers.displaced(from(1)).is_none());
    }

    #[test]
    fn nothing_is_kept_of_those_who_have_gone() {
        let newcomers = Newcomers::none();
        let mut some = newcomers.enter(from(1), None);
        let others = [0; 3].map(|_| newcomers.enter(from(2), None));
        drop(newcomers.displaced(from(3)));
        some.is_from(from(4));
        drop((some, others));
        assert!(newcomers.crowd().origins.is_empty());
    }
}
