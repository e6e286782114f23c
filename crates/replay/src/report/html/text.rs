//! Texts, numbers and headings for a page. Pure.

use std::time::Duration;

use jiff::Timestamp;

use weir_kubernetes::encoding::printable;

/// A text as HTML, in elements and in attributes: names that clients chose stay text.
#[must_use]
pub(super) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    // What would reorder or hide what stands beside it is escaped.
    for letter in printable::escape(text).chars() {
        match letter {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            letter => escaped.push(letter),
        }
    }
    escaped
}

/// A count with separators: `12,345`.
#[must_use]
pub(super) fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut separated = String::new();
    for (position, digit) in digits.chars().enumerate() {
        if position > 0 && (digits.len() - position).is_multiple_of(3) {
            separated.push(',');
        }
        separated.push(digit);
    }
    separated
}

/// A number with as many decimals as it needs.
#[must_use]
pub(super) fn number(value: f64) -> String {
    if value == 0.0 {
        "0".to_owned()
    } else if value.abs() < 10.0 {
        let text = format!("{value:.2}");
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    } else if value.abs() < 100.0 {
        let text = format!("{value:.1}");
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    } else {
        format!("{value:.0}")
    }
}

/// A time in milliseconds: `250 ms`, `1.5 s`.
#[must_use]
pub(super) fn milliseconds(value: f64) -> String {
    if value < 1000.0 {
        format!("{} ms", number(value))
    } else {
        format!("{} s", number(value / 1000.0))
    }
}

/// A part of a whole: `12.3 %`.
#[must_use]
pub(super) fn percent(part: u64, whole: u64) -> String {
    if whole == 0 {
        return "0 %".to_owned();
    }
    let share = weir_kubernetes::numeric::to_f64(part) / weir_kubernetes::numeric::to_f64(whole);
    format!("{} %", number(share * 100.0))
}

/// The time of day (UTC) that is `seconds` after `start`.
#[must_use]
pub(super) fn time_of_day(start: Option<&str>, seconds: f64) -> String {
    let start = start.and_then(|start| start.parse::<Timestamp>().ok());
    let later = Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or_default();
    let time = start.and_then(|start| start.checked_add(later).ok());
    time.map_or_else(
        || format!("+{} s", number(seconds)),
        |time| time.strftime("%H:%M:%S").to_string(),
    )
}

/// The beginning of a section of the page.
pub(super) fn section(title: &str, note: &str) -> String {
    format!(
        "<section><div class=\"head\"><h2>{}</h2><span class=\"note\">{}</span></div>\n",
        escape(title),
        escape(note)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markup_and_hidden_characters_do_not_pass() {
        assert_eq!(
            escape("<script>alert('a')</script>&\"é"),
            "&lt;script&gt;alert(&#39;a&#39;)&lt;/script&gt;&amp;&quot;é"
        );
        assert_eq!(escape("a\u{202e}b\u{0}\n\\"), r"a\u202eb\x00\n\\");
    }

    #[test]
    fn numbers_are_short() {
        for (value, expected) in [
            (0, "0"),
            (999, "999"),
            (1000, "1,000"),
            (12_345_678, "12,345,678"),
        ] {
            assert_eq!(count(value), expected);
        }
        for (value, expected) in [
            (0.0, "0"),
            (0.25, "0.25"),
            (2.0, "2"),
            (12.34, "12.3"),
            (1234.5, "1234"),
        ] {
            assert_eq!(number(value), expected);
        }
        assert_eq!(milliseconds(250.0), "250 ms");
        assert_eq!(milliseconds(1500.0), "1.5 s");
        assert_eq!(percent(1, 8), "12.5 %");
        assert_eq!(percent(1, 0), "0 %");
    }

    #[test]
    fn times_are_those_of_the_day() {
        assert_eq!(time_of_day(Some("2026-11-23T19:00:00Z"), 90.5), "19:01:30");
        assert_eq!(time_of_day(None, 5.0), "+5 s");
        assert_eq!(time_of_day(Some("not a time"), f64::NAN), "+NaN s");
    }
}
