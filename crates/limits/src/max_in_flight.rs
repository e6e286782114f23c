//! The max-in-flight limiter: limits concurrent read-only and mutating requests, without a queue.
//!
//! It follows `WithMaxInFlightLimit` (Kubernetes 1.36, `server/filters/maxinflight.go`):
//! long-running requests are not counted, and a limit of 0 is no limit (and counts nothing).
//! `system:masters` passes a full limiter without a slot. [`InFlightMetrics`] reports the requests
//! in flight.

use std::num::NonZeroU32;
use std::sync::Arc;

use prometheus::IntGaugeVec;

use crate::admission_attributes::AdmissionAttributes;
use crate::in_flight::{InFlightMetrics, UtilizationLimits};
use weir_base::clock::Clock;
use weir_base::metrics::Registry;
use weir_base::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use weir_kubernetes::api::user::GROUP_MASTERS;
use weir_kubernetes::request_info::RequestKind;

/// The limits of the two request kinds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MaxInFlightConfig {
    /// `--max-requests-inflight`.
    pub read_only: InFlightLimit,
    /// `--max-mutating-requests-inflight`.
    pub mutating: InFlightLimit,
}

impl MaxInFlightConfig {
    /// This total, of which a third is for mutating requests: 400 and 200 of 600, kube-apiserver's
    /// defaults.
    #[must_use]
    pub fn divided(total: u32) -> Self {
        let mutating = (total / 3).max(1);
        Self {
            read_only: total.saturating_sub(mutating).max(1).into(),
            mutating: mutating.into(),
        }
    }
}

/// The limit of one request kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InFlightLimit {
    /// At most this many concurrent requests.
    Limited(NonZeroU32),
    /// No limit.
    Unlimited,
}

impl From<u32> for InFlightLimit {
    /// Zero means "no limit", as it does for kube-apiserver.
    fn from(flag: u32) -> Self {
        NonZeroU32::new(flag).map_or(Self::Unlimited, Self::Limited)
    }
}

impl InFlightLimit {
    /// Zero means "no limit".
    #[must_use]
    pub fn as_number(self) -> u32 {
        match self {
            Self::Limited(limit) => limit.get(),
            Self::Unlimited => 0,
        }
    }
}

/// The rejection of a request: all slots of its kind are in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MaxInFlightRejection {
    /// The request kind.
    pub kind: RequestKind,
    /// The limit that was reached.
    pub limit: u32,
}

impl MaxInFlightRejection {
    /// The `Retry-After` in seconds (`server/filters/maxinflight.go`: constant 1).
    pub const RETRY_AFTER: u32 = 1;
}

/// Counts the requests in flight and rejects those above the limit.
#[derive(Debug)]
pub struct MaxInFlight {
    read_only: Arc<InFlightSlots>,
    mutating: Arc<InFlightSlots>,
    /// Whether requests above a limit are only counted. Relaxed: no other memory depends on it.
    is_dry_run: AtomicBool,
    in_flight: Arc<InFlightMetrics>,
    limit_gauge: IntGaugeVec,
}

impl MaxInFlight {
    /// A limiter that registers its metrics in `registry`.
    #[must_use]
    pub fn new(config: MaxInFlightConfig, registry: &Registry) -> Self {
        Self::with_in_flight(config, &InFlightMetrics::new(registry), registry)
    }

    /// As [`new`](Self::new), with metrics that it shares with the limiter of the other mode.
    #[must_use]
    pub fn with_in_flight(
        config: MaxInFlightConfig,
        in_flight: &Arc<InFlightMetrics>,
        registry: &Registry,
    ) -> Self {
        let limit_gauge = registry.gauges(
            "weir_requests_inflight_limit",
            "Most requests in flight per request kind, where max-in-flight is what limits; 0 is no limit.",
            &["request_kind"],
        );
        let slots = |kind| {
            Arc::new(InFlightSlots {
                kind,
                limit: AtomicU32::new(0),
                in_use: AtomicU32::new(0),
                reserved: AtomicU32::new(0),
                admitted: AtomicU64::new(0),
                rejected: AtomicU64::new(0),
                in_flight: Arc::clone(in_flight),
            })
        };
        let limiter = Self {
            read_only: slots(RequestKind::ReadOnly),
            mutating: slots(RequestKind::Mutating),
            is_dry_run: AtomicBool::new(false),
            in_flight: Arc::clone(in_flight),
            limit_gauge,
        };
        limiter.set_limits(config);
        limiter
    }

    /// Changes the limits. Requests in flight keep their slots: with a lower limit, none starts
    /// until fewer are in flight. Requests that started without a limit are not counted.
    pub fn set_limits(&self, config: MaxInFlightConfig) {
        let MaxInFlightConfig {
            read_only,
            mutating,
        } = config;
        for (slots, limit) in [(&self.read_only, read_only), (&self.mutating, mutating)] {
            let executing = limit.as_number();
            slots.limit.store(executing, Ordering::Relaxed);
            let limits = UtilizationLimits {
                executing: Some(executing.into()),
                waiting: None,
            };
            self.in_flight.set_limits(slots.kind, Clock.now(), limits);
            let limit_gauge = self.limit_gauge.with_label_values(&[slots.kind.label()]);
            limit_gauge.set(executing.into());
        }
    }

    /// Shows no limits: new requests come to another limiter. Requests in flight keep their slots.
    pub fn hide_limits(&self) {
        self.limit_gauge.reset();
    }

    /// Changes whether requests above a limit pass without a slot. They are counted as rejected.
    pub fn set_dry_run(&self, is_dry_run: bool) {
        self.is_dry_run.store(is_dry_run, Ordering::Relaxed);
    }

    /// Whether requests above a limit are only counted.
    #[must_use]
    pub fn is_dry_run(&self) -> bool {
        self.is_dry_run.load(Ordering::Relaxed)
    }

    /// Acquires a slot for the request; `None` if it needs none.
    ///
    /// # Errors
    /// All slots of its kind are in use. In a [dry run](Self::is_dry_run) the request passes
    /// nevertheless.
    pub fn admit(
        &self,
        attributes: &AdmissionAttributes<'_>,
    ) -> Result<Option<InFlightPermit>, MaxInFlightRejection> {
        if attributes.info.long_running() {
            return Ok(None);
        }
        let slots = match RequestKind::from_request_info(attributes.info) {
            RequestKind::Mutating => &self.mutating,
            RequestKind::ReadOnly => &self.read_only,
        };
        let InFlightLimit::Limited(limit) = slots.limit() else {
            return Ok(None);
        };
        match slots.try_acquire(slots.unreserved(limit.get())) {
            Some(permit) => Ok(Some(permit)),
            None if attributes.user.in_group(GROUP_MASTERS) => Ok(None),
            None => {
                slots.rejected.fetch_add(1, Ordering::Relaxed);
                Err(MaxInFlightRejection {
                    kind: slots.kind,
                    limit: limit.get(),
                })
            }
        }
    }

    /// The slots in use and reserved, for read-only and for mutating requests.
    #[must_use]
    pub fn held(&self) -> [u32; 2] {
        [&self.read_only, &self.mutating].map(|slots| {
            let in_use = slots.in_use.load(Ordering::Relaxed);
            in_use.saturating_add(slots.reserved.load(Ordering::Relaxed))
        })
    }

    /// Leaves so many slots for read-only and for mutating requests to another process, which this
    /// one takes over from. One request of each kind can execute in any case.
    pub fn reserve(&self, [read_only, mutating]: [u32; 2]) {
        self.read_only.reserved.store(read_only, Ordering::Relaxed);
        self.mutating.reserved.store(mutating, Ordering::Relaxed);
    }

    /// The state of both kinds.
    #[must_use]
    pub fn snapshot(&self) -> [MaxInFlightSnapshot; 2] {
        [&self.read_only, &self.mutating].map(|slots| MaxInFlightSnapshot {
            kind: slots.kind,
            in_use: slots.in_use.load(Ordering::Relaxed),
            limit: match slots.limit() {
                InFlightLimit::Limited(limit) => Some(limit),
                InFlightLimit::Unlimited => None,
            },
            admitted: slots.admitted.load(Ordering::Relaxed),
            rejected: slots.rejected.load(Ordering::Relaxed),
        })
    }
}

/// The state of one request kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MaxInFlightSnapshot {
    /// The request kind.
    pub kind: RequestKind,
    /// The number of requests that hold a slot.
    pub in_use: u32,
    /// The number of slots; `None` if there is no limit, and nothing is counted.
    pub limit: Option<NonZeroU32>,
    /// The number of requests that got a slot.
    pub admitted: u64,
    /// The number of requests that were rejected.
    pub rejected: u64,
}

/// The slots of one request kind.
#[derive(Debug)]
struct InFlightSlots {
    kind: RequestKind,
    /// Zero is no limit. Relaxed: no other memory depends on it.
    limit: AtomicU32,
    in_use: AtomicU32,
    /// Slots that requests of another process hold. Relaxed: no other memory depends on it.
    reserved: AtomicU32,
    /// For the snapshot only, hence relaxed.
    admitted: AtomicU64,
    rejected: AtomicU64,
    /// Never shows more than are in use: it is updated after a slot is acquired and before it is
    /// released.
    in_flight: Arc<InFlightMetrics>,
}

impl InFlightSlots {
    fn limit(&self) -> InFlightLimit {
        self.limit.load(Ordering::Relaxed).into()
    }

    /// The slots of `limit` that are for requests of this process.
    fn unreserved(&self, limit: u32) -> u32 {
        let reserved = self.reserved.load(Ordering::Relaxed);
        limit.saturating_sub(reserved).max(1)
    }

    fn try_acquire(self: &Arc<Self>, limit: u32) -> Option<InFlightPermit> {
        // Acquire and Release pair with the release of a slot: the next holder sees that the
        // previous one is gone.
        self.in_use
            .try_update(Ordering::AcqRel, Ordering::Acquire, |n| {
                (n < limit).then_some(n + 1)
            })
            .ok()?;
        self.admitted.fetch_add(1, Ordering::Relaxed);
        self.in_flight.start(self.kind, Clock.now());
        Some(InFlightPermit(Arc::clone(self)))
    }
}

/// One slot. Drop releases it.
#[derive(Debug)]
pub struct InFlightPermit(Arc<InFlightSlots>);

impl Drop for InFlightPermit {
    fn drop(&mut self) {
        self.0.in_flight.end(self.0.kind, Clock.now());
        self.0.in_use.fetch_sub(1, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_kubernetes::api::UserInfo;
    use weir_kubernetes::request_info::RequestInfo;

    fn limiter(read_only: u32, mutating: u32) -> (MaxInFlight, Registry) {
        let registry = Registry::new();
        let config = MaxInFlightConfig {
            read_only: read_only.into(),
            mutating: mutating.into(),
        };
        (MaxInFlight::new(config, &registry), registry)
    }

    fn user(groups: &[&str]) -> UserInfo {
        UserInfo {
            name: "someone".to_owned(),
            groups: groups.iter().map(|g| (*g).to_owned()).collect(),
            ..UserInfo::default()
        }
    }

    fn admit(
        limiter: &MaxInFlight,
        method: &str,
        target: &str,
        groups: &[&str],
    ) -> Result<Option<InFlightPermit>, MaxInFlightRejection> {
        let info = RequestInfo::parse(method, target.as_bytes()).unwrap();
        limiter.admit(&AdmissionAttributes {
            info: &info,
            user: &user(groups),
        })
    }

    #[test]
    fn reserved_slots_are_left_to_another_process_until_it_gives_them_back() {
        let (limiter, _) = limiter(3, 1);
        let read = || admit(&limiter, "GET", "/api/v1/pods", &[]);
        limiter.reserve([2, 7]);
        let first = read().unwrap();
        assert!(first.is_some() && read().is_err());
        assert_eq!(limiter.held(), [3, 7]);
        let write = admit(&limiter, "POST", "/api/v1/pods", &[]).unwrap();
        assert!(write.is_some(), "one can execute in any case");
        limiter.reserve([0, 0]);
        assert!(read().unwrap().is_some());
        assert_eq!(limiter.held(), [1, 1]);
    }

    #[test]
    fn each_kind_has_its_own_slots_and_a_dropped_permit_frees_one() {
        let (limiter, _) = limiter(1, 1);
        let read = admit(&limiter, "GET", "/api/v1/pods", &[]).unwrap();
        let write = admit(&limiter, "POST", "/api/v1/pods", &[]).unwrap();
        assert!(read.is_some() && write.is_some());
        let rejection = admit(&limiter, "GET", "/api/v1/pods", &[]).unwrap_err();
        let expected = MaxInFlightRejection {
            kind: RequestKind::ReadOnly,
            limit: 1,
        };
        assert_eq!(rejection, expected);
        drop(read);
        assert!(
            admit(&limiter, "GET", "/api/v1/pods", &[])
                .unwrap()
                .is_some()
        );
    }

    #[test]
    fn long_running_requests_take_no_slot() {
        let (limiter, _) = limiter(1, 1);
        let _held = admit(&limiter, "GET", "/api/v1/pods", &[]).unwrap();
        assert!(
            admit(&limiter, "GET", "/api/v1/pods?watch=1", &[])
                .unwrap()
                .is_none()
        );
        assert!(
            admit(&limiter, "GET", "/api/v1/namespaces/a/pods/b/log", &[])
                .unwrap()
                .is_none()
        );
    }

    #[test]
    fn system_masters_pass_a_full_limiter_without_a_slot_and_take_one_otherwise() {
        let (limiter, _) = limiter(1, 1);
        let held = admit(&limiter, "GET", "/", &[GROUP_MASTERS]).unwrap();
        assert!(held.is_some());
        assert!(
            admit(&limiter, "GET", "/", &[GROUP_MASTERS])
                .unwrap()
                .is_none()
        );
    }

    #[test]
    fn a_limit_of_zero_is_no_limit_and_counts_nothing() {
        let (limiter, registry) = limiter(0, 1);
        let _held: Vec<_> = (0..1000)
            .map(|_| admit(&limiter, "GET", "/", &[]))
            .collect();
        limiter.in_flight.publish_peaks();
        assert!(
            registry
                .render()
                .contains("apiserver_current_inflight_requests{request_kind=\"readOnly\"} 0")
        );
    }

    #[test]
    fn the_gauge_is_the_peak_of_the_last_second_and_never_exceeds_the_limit() {
        let (limiter, registry) = limiter(2, 1);
        let held: Vec<_> = (0..5).map(|_| admit(&limiter, "GET", "/", &[])).collect();
        drop(held);
        limiter.in_flight.publish_peaks();
        let text = registry.render();
        assert!(
            text.contains("apiserver_current_inflight_requests{request_kind=\"readOnly\"} 2"),
            "{text}"
        );
        limiter.in_flight.publish_peaks();
        let text = registry.render();
        assert!(text.contains("apiserver_current_inflight_requests{request_kind=\"readOnly\"} 0"));
        let part = |kind| {
            let labels = format!("phase=\"executing\",request_kind=\"{kind}\"");
            text.contains(&format!(
                "apiserver_flowcontrol_read_vs_write_current_requests_bucket{{{labels},le=\"1\"}}"
            ))
        };
        assert!(part("readOnly") && part("mutating"), "{text}");
        assert!(
            !text.contains("phase=\"waiting\"") && !text.contains("inqueue"),
            "{text}"
        );
    }

    #[test]
    fn limits_can_change_while_slots_are_held() {
        let (limiter, registry) = limiter(2, 1);
        let read = || admit(&limiter, "GET", "/api/v1/pods", &[]);
        let held = [read().unwrap(), read().unwrap()];
        let set = |read_only: u32| {
            limiter.set_limits(MaxInFlightConfig {
                read_only: read_only.into(),
                mutating: 1.into(),
            });
        };
        set(3);
        let third = read().unwrap();
        assert!(third.is_some());
        set(1);
        assert_eq!(read().unwrap_err().limit, 1);
        drop(third);
        drop(held);
        let one = read().unwrap();
        assert!(one.is_some() && read().is_err());
        set(0);
        assert!(read().unwrap().is_none(), "no limit");
        drop(one);
        set(1);
        assert_eq!(limiter.snapshot()[0].in_use, 0);
        assert!(
            registry
                .render()
                .contains("weir_requests_inflight_limit{request_kind=\"readOnly\"} 1")
        );
    }

    #[cfg(weir_loom)]
    mod loom_tests {
        use super::*;
        use weir_base::sync::{model, thread};

        #[test]
        fn a_slot_has_one_holder_at_a_time_and_the_next_sees_what_it_did() {
            model(|| {
                let limiter = Arc::new(limiter(1, 1).0);
                let done = Arc::new(AtomicU32::new(0));
                let request = {
                    let (limiter, done) = (Arc::clone(&limiter), Arc::clone(&done));
                    move || {
                        let admitted = admit(&limiter, "GET", "/api/v1/pods", &[]);
                        let Ok(_permit) = admitted else { return 0 };
                        // Two steps: another holder, or one that does not see them, loses one.
                        let before = done.load(Ordering::Relaxed);
                        done.store(before + 1, Ordering::Relaxed);
                        1
                    }
                };
                let others = [request.clone(), request.clone()].map(thread::spawn);
                let mut admitted = request();
                for other in others {
                    admitted += other.join().unwrap();
                }
                assert!(admitted > 0);
                assert_eq!(done.load(Ordering::Relaxed), admitted);
                assert_eq!(limiter.held(), [0, 0]);
            });
        }
    }
}
