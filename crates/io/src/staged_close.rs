//! The staged close of a connection on which the client may still be sending: a request's body (RFC
//! 9112, 9.6), or HTTP/2's frames while it reads the last response.
//!
//! If a socket is closed while received bytes are unread, the kernel resets the connection. A client
//! that writes its whole request before it reads then gets a broken pipe instead of the response. So
//! weir closes the write half first, and discards what the client still sends, undecrypted. The
//! connection counts for `--max-connections` and for its address until the end.
//!
//! Go's server waits for 0.5 s and reads nothing (`net/http.rstAvoidanceDelay`), which is enough for
//! what the buffers of both sockets hold, some megabytes.

use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::time::timeout;

/// How long the client may send nothing until the connection is closed.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(1);

/// How long the client may send (nginx's default of `lingering_time`): 3 MB, the largest body that
/// kube-apiserver accepts, at 100 KB/s.
const DISCARD_TIMEOUT: Duration = Duration::from_secs(30);

/// How many bytes the client may send.
const MAX_DISCARDED: usize = 64 << 20;

/// The size of the buffer for bytes that are read and discarded.
const DISCARD_BUFFER: usize = 8 << 10;

/// Reads and discards until the client closes the connection, sends nothing for a second, or has
/// sent for too long or too much. The write half has to be shut down before.
///
/// # Cancel safety
/// Nothing is lost.
pub async fn discard_until_closed(mut tcp: impl AsyncRead + Unpin) {
    let discarding = async {
        let (mut buffer, mut discarded) = (vec![0; DISCARD_BUFFER], 0);
        while let Ok(Ok(read @ 1..)) = timeout(SILENCE_TIMEOUT, tcp.read(&mut buffer)).await
            && discarded < MAX_DISCARDED
        {
            discarded += read;
        }
    };
    let _ = timeout(DISCARD_TIMEOUT, discarding).await;
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncWriteExt, DuplexStream};
    use tokio::time::Instant;

    use super::*;

    /// How long a connection is open whose client does this.
    async fn open_for(client: impl AsyncFnOnce(DuplexStream)) -> Duration {
        let (near, far) = tokio::io::duplex(1 << 10);
        let began = Instant::now();
        let discarding = async {
            discard_until_closed(near).await; // drops it, which closes it
            began.elapsed()
        };
        tokio::join!(discarding, client(far)).0
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_is_open_until_its_client_has_closed_it() {
        let sent_and_closed = open_for(async |mut far: DuplexStream| {
            far.write_all(&vec![7; 10 << 20]).await.unwrap();
        });
        assert_eq!(sent_and_closed.await, Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_client_gets_a_second() {
        let silent = open_for(async |mut far: DuplexStream| {
            far.write_all(&[7; 100]).await.unwrap();
            far.read_to_end(&mut Vec::new()).await.unwrap();
        });
        assert_eq!(silent.await, SILENCE_TIMEOUT);
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_sends_on_and_on_is_cut_off() {
        let slow = open_for(async |mut far: DuplexStream| {
            while far.write_all(&[7]).await.is_ok() {
                tokio::time::sleep(SILENCE_TIMEOUT / 2).await;
            }
        });
        assert_eq!(slow.await, DISCARD_TIMEOUT);
        let fast = open_for(
            async |mut far: DuplexStream| {
                while far.write_all(&[7; 1 << 10]).await.is_ok() {}
            },
        );
        assert_eq!(fast.await, Duration::ZERO);
    }
}
