//! Numbers as `weir top`, `weir status` and the headline show them.

use weir_kubernetes::numeric::to_f64;

/// A rate.
#[must_use]
pub fn rate(rate: f64) -> String {
    match rate {
        ..=0.0 => "0".to_owned(),
        ..0.1 => "<0.1".to_owned(),
        ..10.0 => format!("{rate:.1}"),
        ..100_000.0 => format!("{rate:.0}"),
        _ => format!("{:.0}k", rate / 1000.0),
    }
}

/// A count.
#[must_use]
pub fn count(count: u64) -> String {
    match count {
        0..100_000 => count.to_string(),
        100_000..10_000_000 => format!("{:.0}k", to_f64(count) / 1e3),
        _ => format!("{:.0}M", to_f64(count) / 1e6),
    }
}

/// A duration, given in seconds.
#[must_use]
pub fn duration(seconds: f64) -> String {
    match seconds {
        ..=0.0 => "0".to_owned(),
        ..0.001 => "<1ms".to_owned(),
        ..1.0 => format!("{:.0}ms", seconds * 1000.0),
        ..100.0 => format!("{seconds:.1}s"),
        _ => format!("{seconds:.0}s"),
    }
}

/// An amount of data, given in bytes.
#[must_use]
pub fn bytes(bytes: u64) -> String {
    let mut rest = to_f64(bytes);
    for unit in ["B", "KiB", "MiB", "GiB"] {
        if rest < 1024.0 {
            return format!("{rest:.0} {unit}");
        }
        rest /= 1024.0;
    }
    format!("{rest:.0} TiB")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        assert_eq!(
            [0.0, 0.04, 3.25, 99.5, 250_000.0].map(rate),
            ["0", "<0.1", "3.2", "100", "250k"]
        );
        assert_eq!(
            [0, 99_999, 100_000, 12_345_678].map(count),
            ["0", "99999", "100k", "12M"]
        );
        assert_eq!(
            [0.0, 0.0002, 0.25, 1.25].map(duration),
            ["0", "<1ms", "250ms", "1.2s"]
        );
        assert_eq!([10, 2048, 5 << 20].map(bytes), ["10 B", "2 KiB", "5 MiB"]);
    }
}
