//! Tests of the parameters.

use super::query::{Dimension, TopTalkersQuery, UsageMeasure, Window};
use weir_kubernetes::request_info;

#[test]
fn all_invalid_parameters_are_reported_at_once() {
    let parse = |text: &str| TopTalkersQuery::parse(request_info::Query::new(text.as_bytes()));
    assert_eq!(parse(""), Ok(TopTalkersQuery::default()));
    let all = parse("window=60m&by=userAgent&sort=queueWait&limit=50").unwrap();
    assert_eq!(
        (all.window, all.by, all.sort, all.limit),
        (
            Window::SixtyMinutes,
            Dimension::UserAgent,
            UsageMeasure::QueueWait,
            50
        )
    );
    for by in Dimension::ALL {
        assert_eq!(parse(&format!("by={}", by.name())).unwrap().by, by);
        assert_eq!(
            serde_json::to_string(&by).unwrap(),
            format!("\"{}\"", by.name())
        );
    }
    for sort in UsageMeasure::ALL {
        assert_eq!(parse(&format!("sort={}", sort.name())).unwrap().sort, sort);
        assert_eq!(
            serde_json::to_string(&sort).unwrap(),
            format!("\"{}\"", sort.name())
        );
    }
    for window in Window::ALL {
        assert_eq!(
            parse(&format!("window={}", window.name())).unwrap().window,
            window
        );
        assert_eq!(
            serde_json::to_string(&window).unwrap(),
            format!("\"{}\"", window.name())
        );
    }
    let wrong = parse("window=2m&by=pod&sort=size&limit=0&limit=x&of=1&a%zz=b").unwrap_err();
    assert_eq!(
        wrong.to_string(),
        "window=2m: must be one of 1m, 5m, 60m\n\
         by=pod: must be one of flow, namespace, resource, sourceAddress, tag, user, userAgent\n\
         sort=size: must be one of bytes, queueWait, rejections, requests, seatSeconds, wouldBeRejections\n\
         limit=0: must be a number from 1 to 50\n\
         limit=x: must be a number from 1 to 50\n\
         of: unknown; there are by, limit, sort and window\n\
         a parameter cannot be decoded: must be NAME=VALUE, with %XX for what is special in a URL\n"
    );
    let long = parse(&format!("by={}", "%00".repeat(3000)))
        .unwrap_err()
        .to_string();
    assert!(long.len() < 500, "{long}");
}
