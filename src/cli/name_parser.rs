//! Values of flags that are names of something.

use clap::builder::{PossibleValuesParser, TypedValueParser};

/// Parses one of `all` by its name, as `/debug/top_talkers` does.
pub(crate) fn name_parser<T: Copy + Send + Sync + 'static, const N: usize>(
    all: [T; N],
    name: fn(T) -> &'static str,
) -> impl TypedValueParser<Value = T> {
    PossibleValuesParser::new(all.map(name)).try_map(move |text| {
        let found = all.into_iter().find(|value| name(*value) == text);
        found.ok_or("there is no such thing")
    })
}
