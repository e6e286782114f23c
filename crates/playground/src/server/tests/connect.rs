//! Exec and port-forward over WebSocket, and the rejection of SPDY.

use super::*;

#[tokio::test]
async fn an_exec_echoes_until_its_input_ends() {
    let test_server = start(PlaygroundSettings::default()).await;
    let pod = first_pod(&test_server).await;
    let path =
        format!("/api/v1/namespaces/default/pods/{pod}/exec?command=cat&stdin=true&stdout=true");
    let mut socket = test_server.websocket(&path, "v5.channel.k8s.io").await;
    assert_eq!(test_server.server.counters().long_running, 1);
    for sent in [&b"\x00hello"[..], b"\xff\x00"] {
        socket.send(Message::binary(sent.to_vec())).await.unwrap();
    }
    let mut received = Vec::new();
    while let Some(Ok(message)) = tokio::time::timeout(TEST_TIMEOUT, socket.next())
        .await
        .unwrap()
    {
        if let Message::Binary(bytes) = message {
            received.push(bytes);
        }
    }
    assert_eq!(received[0], &b"\x01hello"[..]);
    let status: Value = serde_json::from_slice(&received[1][1..]).unwrap();
    assert_eq!((received[1][0], &status["status"]), (3, &json!("Success")));
    assert_eq!(received.len(), 2);
}

#[tokio::test]
async fn a_port_forward_sends_its_port_numbers_and_echoes() {
    let test_server = start(PlaygroundSettings::default()).await;
    let pod = first_pod(&test_server).await;
    let path = format!("/api/v1/namespaces/default/pods/{pod}/portforward?ports=80%2C8080");
    let mut socket = test_server.websocket(&path, "v4.channel.k8s.io").await;
    socket
        .send(Message::binary(b"\x02ping".to_vec()))
        .await
        .unwrap();
    let mut received = Vec::new();
    while received.len() < 5 {
        let next = tokio::time::timeout(TEST_TIMEOUT, socket.next())
            .await
            .unwrap();
        received.push(next.unwrap().unwrap().into_data());
    }
    let expected: [&[u8]; 5] = [
        b"\x00\x50\x00",
        b"\x01\x50\x00",
        b"\x02\x90\x1f",
        b"\x03\x90\x1f",
        b"\x02ping",
    ];
    assert_eq!(received, expected);
}

#[tokio::test]
async fn spdy_is_rejected_with_a_message() {
    let test_server = start(PlaygroundSettings::default()).await;
    let pod = first_pod(&test_server).await;
    let path = format!("/api/v1/namespaces/default/pods/{pod}/exec?command=ls");
    let mut request = request(Method::POST, &path, &Value::Null);
    let spdy: HeaderMap = [("connection", "Upgrade"), ("upgrade", "SPDY/3.1")]
        .into_iter()
        .map(|(name, value)| (HeaderName::from_static(name), value.parse().unwrap()))
        .collect();
    request.headers_mut().extend(spdy);
    let (credential, _) = test_server.user("alice");
    let mut sender = test_server.http1(credential.as_ref()).await;
    let (status, body) = read_response(sender.send_request(request).await.unwrap()).await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    let message = "unable to upgrade to SPDY/3.1: only websocket is spoken here";
    assert_eq!(body["message"], message);
}
