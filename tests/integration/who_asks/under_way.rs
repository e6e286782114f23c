//! A request is under way from when it comes, not from when it is known whose it is.

use super::*;
use crate::support::eventually;

#[tokio::test]
async fn weir_s_end_waits_for_a_request_whose_token_is_being_reviewed() {
    let mut upstream = Upstream::start().await;
    let weir = weir::before(upstream.address)
        .with(|config| {
            config.own = Source::Given {
                certificate: None,
                token: Some(Token::Given(bearer("weirs-own").unwrap())),
            };
        })
        .start()
        .await;
    let mut client = weir.bearing(Http::Two, ("authorization", "Bearer opaque"));
    let call = client.send(Ask::get(LIST)).await;
    let review = upstream.next().await;
    eventually("the request to be under way", async || {
        let status = weir.operator("/status.json").await;
        let status: Value = serde_json::from_str(status.text()).unwrap();
        (status["requests"]["inFlight"] == 1).then_some(())
    })
    .await;
    review
        .reply(
            201,
            r#"{"status":{"authenticated":true,"user":{"username":"alice"}}}"#,
        )
        .await;
    upstream.next().await.reply(200, "{}").await;
    assert_eq!(call.answer().await.status, 200);
}
