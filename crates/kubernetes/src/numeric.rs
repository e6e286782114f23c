//! Conversions between types of numbers that saturate or round, and cannot fail. Pure.

/// A count as a float: exact below 2^53, and rounded above.
#[expect(
    clippy::as_conversions,
    clippy::cast_precision_loss,
    reason = "metrics, plots and averages need no more"
)]
pub const fn to_f64(count: u64) -> f64 {
    count as f64
}

macro_rules! saturating {
    ($($name:ident $number:ty),*) => {$(
        #[doc = concat!("A number that is not negative, or the largest `", stringify!($number), "` if it does not fit.")]
        pub fn $name(number: impl TryInto<$number>) -> $number {
            number.try_into().unwrap_or(<$number>::MAX)
        }
    )*};
}

saturating!(
    saturating_i64 i64,
    saturating_u16 u16,
    saturating_u32 u32,
    saturating_u64 u64,
    saturating_usize usize
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_that_does_not_fit_becomes_the_largest() {
        assert_eq!(saturating_u16(65_535_u64), 65_535);
        assert_eq!(saturating_u16(65_536_u64), u16::MAX);
        assert_eq!(saturating_i64(u64::MAX), i64::MAX);
    }
}
