//! Compares the limits with a slow, exact model, and reproduces the example of the EventRateLimit
//! proposal.

use std::time::Duration;

use super::*;

/// A simple model of a limit: a list of keys with their buckets, the newest last.
struct EventLimitModel {
    limit_type: LimitType,
    qps: f64,
    burst: f64,
    capacity: usize,
    keys: Vec<(Vec<u8>, f64, Duration)>,
}

impl EventLimitModel {
    fn take(&mut self, key: &[u8], now: Duration) -> bool {
        let index = self.keys.iter().position(|(tracked, ..)| tracked == key);
        let (key, tokens, last) = match index {
            Some(at) => self.keys.remove(at),
            None => (key.to_vec(), self.burst, now),
        };
        let elapsed = now.saturating_sub(last);
        let seconds = f64::from(u32::try_from(elapsed.as_secs()).unwrap())
            + f64::from(elapsed.subsec_nanos()) / 1e9;
        let filled = (tokens + seconds * self.qps).min(self.burst);
        let short = (1.0 - filled).max(0.0) / self.qps * 1e9;
        let allowed = short < 1.0;
        self.keys.push(if allowed {
            (key, filled - 1.0, now)
        } else {
            (key, tokens, last)
        });
        if self.keys.len() > self.capacity {
            self.keys.remove(0);
        }
        allowed
    }
}

fn with_limits(configs: &[EventLimitConfig]) -> (EventLimits, Vec<EventLimitId>) {
    let mut limits = EventLimits::default();
    let ids = configs.iter().map(|limit| limits.add(limit)).collect();
    (limits, ids)
}

#[test]
fn decisions_equal_the_model_for_random_keys_times_and_evictions() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let base = Instant::now() + Duration::from_secs(1000);
    for round in 0..150 {
        let types = [
            LimitType::Namespace,
            LimitType::Server,
            LimitType::SourceAndObject,
            LimitType::User,
        ];
        let limits: Vec<EventLimitConfig> = (0..random.usize(1..5))
            .map(|_| EventLimitConfig {
                limit_type: types[random.usize(..4)],
                qps: random.u32(1..20),
                burst: random.u32(1..20),
                cache_size: random.u32(1..6),
                warning_reserve_percent: 0,
            })
            .collect();
        let model = |limit: &EventLimitConfig| EventLimitModel {
            limit_type: limit.limit_type,
            qps: f64::from(limit.qps),
            burst: f64::from(limit.burst),
            capacity: usize::try_from(limit.cache_size).unwrap(),
            keys: Vec::new(),
        };
        let mut models: Vec<EventLimitModel> = limits.iter().map(model).collect();
        let ((mut real, ids), keys) = (with_limits(&limits), LruKeyHasher::default());
        let mut now = Duration::from_secs(100);
        for step in 0..400 {
            match random.u8(..20) {
                0 => now = now.saturating_sub(Duration::from_millis(random.u64(..500))),
                1 => now += Duration::from_secs(random.u64(..4)),
                2..15 => now += Duration::from_nanos(random.u64(..200_000_000)),
                _ => {}
            }
            let names: [Vec<u8>; 3] = std::array::from_fn(|_| vec![b'a' + random.u8(..8)]);
            let event = LimitedEvent {
                namespace: &names[0],
                user: &names[1],
                source_and_object: Cow::Borrowed(&names[2]),
                warning: random.bool(),
            };
            let mut results = Vec::new();
            let bucket_keys = EventBucketKeys::from_event(&event, &keys);
            real.charge(&ids, &bucket_keys, base + now, |n, result| {
                assert_eq!(n, results.len());
                results.push(result.token.is_ok());
            });
            let expected: Vec<bool> = models
                .iter_mut()
                .map(|model| {
                    let key = event.key_text(model.limit_type).to_vec();
                    model.take(&key, now)
                })
                .collect();
            assert_eq!(results, expected, "seed {seed} round {round} step {step}");
        }
    }
}

#[test]
fn the_proposal_s_example_is_reproduced_exactly() {
    let limit = |limit_type, qps, burst, cache_size| EventLimitConfig {
        limit_type,
        qps,
        burst,
        cache_size,
        warning_reserve_percent: 0,
    };
    let (mut limits, keys, start) = (
        EventLimits::default(),
        LruKeyHasher::default(),
        Instant::now(),
    );
    let ids = [
        limit(LimitType::Server, 100, 1000, 1),
        limit(LimitType::Namespace, 10, 100, 50),
    ]
    .map(|limit| limits.add(&limit));
    let mut accepted = |events: usize, now: Instant| {
        let mut accepted = 0;
        for n in 0..events {
            let namespace = format!("ns-{}", n % 15);
            let event = LimitedEvent {
                namespace: namespace.as_bytes(),
                user: b"",
                source_and_object: Cow::default(),
                warning: false,
            };
            let mut allowed = true;
            limits.charge(
                &ids,
                &EventBucketKeys::from_event(&event, &keys),
                now,
                |_, result| allowed &= result.token.is_ok(),
            );
            accepted += usize::from(allowed);
        }
        accepted
    };
    assert_eq!(accepted(1500, start), 1000);
    assert_eq!(accepted(500, start + Duration::from_secs(1)), 100);
}

#[test]
fn a_message_is_short_for_any_key() {
    use weir_kubernetes::api::Status;
    for key in [&b"k"[..], b"\"", b"\x01", b"\xff", "\u{1f600}".as_bytes()] {
        for prefix in 0..4 {
            let long = [b"xyz".get(..prefix).unwrap_or(b"xyz"), &key.repeat(1 << 20)].concat();
            let event = LimitedEvent {
                namespace: &long,
                user: &long,
                source_and_object: Cow::Borrowed(&long),
                warning: false,
            };
            let message = rejection_message(&event, [LimitType::Namespace, LimitType::User]);
            assert!(message.capacity() < 1024, "{}", message.capacity());
            assert!(message.ends_with('…') && message.len() > 100, "{message}");
            let status = Status {
                code: 429,
                reason: "TooManyRequests",
                message,
                cause: "weir/event-rate-limit",
                retry_after_seconds: Some(1),
            };
            let length = status.to_json().len();
            assert!(length < 2048, "client-go reads 2 KiB: {length}");
        }
    }
    let event = LimitedEvent {
        namespace: b"a\"b",
        user: b"",
        source_and_object: Cow::Borrowed(b""),
        warning: false,
    };
    let message = rejection_message(&event, [LimitType::Namespace]);
    assert!(message.ends_with("for key a\"b"), "{message}");
}
