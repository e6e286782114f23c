//! The event streams of replicas' views: one channel for all replicas, and one for each that is
//! picked out, while there are subscribers.

use std::collections::BTreeMap;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::watch;

/// The last event of each view. Locked to add, remove or find a channel only.
#[derive(Debug, Default)]
pub(super) struct ViewChannels(Mutex<BTreeMap<String, watch::Sender<Bytes>>>);

impl ViewChannels {
    /// Subscribes to a view. The caller bounds the number of subscribers.
    pub(super) fn subscribe(&self, chosen: &str) -> watch::Receiver<Bytes> {
        let mut channels = self.0.lock();
        channels.entry(chosen.to_owned()).or_default().subscribe()
    }

    /// The views with subscribers. The others are removed.
    pub(super) fn subscribed(&self) -> Vec<String> {
        let mut channels = self.0.lock();
        channels.retain(|_, channel| channel.receiver_count() > 0);
        channels.keys().cloned().collect()
    }

    /// Sends an event to the subscribers of a view.
    pub(super) fn send(&self, chosen: &str, event: Bytes) {
        if let Some(channel) = self.0.lock().get(chosen) {
            channel.send_replace(event);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_view_has_a_channel_while_it_has_subscribers() {
        let channels = ViewChannels::default();
        let (mut all, mut one) = (channels.subscribe("all"), channels.subscribe("one"));
        assert_eq!(channels.subscribed(), ["all", "one"]);
        channels.send("one", Bytes::from_static(b"event"));
        assert_eq!(*one.borrow_and_update(), "event");
        assert!(!all.has_changed().unwrap());
        all.mark_unchanged();
        drop(all);
        assert_eq!(channels.subscribed(), ["one"]);
        channels.send("all", Bytes::new()); // of no effect
        drop(one);
        assert!(channels.subscribed().is_empty());
    }
}
