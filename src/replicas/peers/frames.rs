//! Frames: the length in four bytes, the most significant first, and as many bytes.

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// Reads a frame of at most `max` bytes.
///
/// # Errors
/// The connection fails or ends, or the frame is larger: `InvalidData`.
///
/// # Cancel safety
/// None: the connection cannot be used after a part of a frame.
pub(super) async fn read_frame(
    io: &mut (impl AsyncRead + Unpin),
    max: usize,
) -> io::Result<Vec<u8>> {
    let length = io.read_u32().await?;
    let length = usize::try_from(length).unwrap_or(usize::MAX);
    if length > max {
        let why = format!("a frame of {length} bytes; {max} are the most");
        return Err(io::Error::new(io::ErrorKind::InvalidData, why));
    }
    let mut frame = vec![0; length];
    io.read_exact(&mut frame).await?;
    Ok(frame)
}

/// Writes a frame of at most `max` bytes.
///
/// # Errors
/// The connection fails, or the frame is larger: `InvalidInput`.
///
/// # Cancel safety
/// None: the connection cannot be used after a part of a frame.
pub(super) async fn write_frame(
    io: &mut (impl AsyncWrite + Unpin),
    frame: &[u8],
    max: usize,
) -> io::Result<()> {
    let length = u32::try_from(frame.len()).ok();
    let length = length.filter(|_| frame.len() <= max);
    let Some(length) = length else {
        return Err(io::Error::from(io::ErrorKind::InvalidInput));
    };
    let mut whole = Vec::with_capacity(frame.len() + 4);
    whole.extend_from_slice(&length.to_be_bytes());
    whole.extend_from_slice(frame);
    io.write_all(&whole).await?;
    io.flush().await
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX: usize = 64 << 10;

    #[tokio::test]
    async fn a_frame_is_read_as_it_was_written_and_a_large_one_is_refused_before_it_is_read() {
        let (mut one, mut other) = tokio::io::duplex(1 << 20);
        write_frame(&mut one, b"hello", MAX).await.unwrap();
        write_frame(&mut one, b"", MAX).await.unwrap();
        assert_eq!(read_frame(&mut other, MAX).await.unwrap(), b"hello");
        assert_eq!(read_frame(&mut other, MAX).await.unwrap(), b"");
        let large = vec![0; MAX + 1];
        assert!(write_frame(&mut one, &large, MAX).await.is_err());
        one.write_all(&u32::MAX.to_be_bytes()).await.unwrap();
        let why = read_frame(&mut other, MAX).await.unwrap_err();
        assert_eq!(why.kind(), io::ErrorKind::InvalidData);
        one.write_all(&[0, 0, 0, 9, 1]).await.unwrap();
        drop(one);
        let why = read_frame(&mut other, MAX).await.unwrap_err();
        assert_eq!(why.kind(), io::ErrorKind::UnexpectedEof);
    }
}
