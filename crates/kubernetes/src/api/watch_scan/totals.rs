//! The results of a scan.

/// The annotation of the last initial event (`metav1.InitialEventsAnnotationKey`).
pub(super) const INITIAL_EVENTS_END: &[u8] = b"k8s.io/initial-events-end";

/// The initial events, complete or so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InitialEvents {
    /// Number of ADDED events.
    pub objects: u64,
    /// Total length of their objects, in bytes.
    pub bytes: u64,
    /// Whether the objects are tables or metadata, so that `bytes` is not the length of the
    /// objects.
    pub transformed: bool,
}

/// The totals of all events that have ended.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct WatchTotals {
    pub(super) events: InitialEvents,
    pub(super) initial_events_ended: bool,
    /// The length of the object of the last event, in bytes.
    pub(super) last_object: Option<u64>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum WatchEventType {
    Added,
    Bookmark,
    Other,
    #[default]
    Unknown,
}

impl WatchEventType {
    pub(super) fn from_name(name: Option<&[u8]>) -> Self {
        match name {
            Some(b"ADDED") => Self::Added,
            Some(b"BOOKMARK") => Self::Bookmark,
            _ => Self::Other,
        }
    }
}

impl WatchTotals {
    /// Records the end of an event whose object has `bytes` bytes.
    pub(super) fn record_event(
        &mut self,
        event: WatchEventType,
        ends_initial_events: bool,
        bytes: u64,
    ) {
        self.last_object = Some(bytes);
        match event {
            WatchEventType::Added if !self.initial_events_ended => {
                self.events.objects = self.events.objects.saturating_add(1);
                self.events.bytes = self.events.bytes.saturating_add(bytes);
            }
            WatchEventType::Bookmark => self.initial_events_ended |= ends_initial_events,
            WatchEventType::Added | WatchEventType::Other | WatchEventType::Unknown => {}
        }
    }
}
