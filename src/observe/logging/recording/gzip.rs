//! Lines in gzip, as whole members of some size. So a file that is written is complete at any time,
//! and can be continued.

use std::io;
use std::io::Write;
use std::path::Path;

use flate2::Compression;
use flate2::write::GzEncoder;

/// The bytes of lines in a member, about. A member does not refer to the lines of others: smaller
/// ones would take more space.
pub(crate) const MEMBER_BYTES: usize = 256 << 10;

/// Whether a file of this name is compressed.
#[must_use]
pub(crate) fn is_gzip_name(path: &Path) -> bool {
    let extension = path.extension();
    extension.is_some_and(|extension| extension.eq_ignore_ascii_case("gz"))
}

/// The lines as a member. Nothing of nothing.
#[must_use]
pub(crate) fn gzip_member(lines: &[u8]) -> Vec<u8> {
    if lines.is_empty() {
        return Vec::new();
    }
    let write = || -> io::Result<Vec<u8>> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(lines)?;
        encoder.finish()
    };
    write().unwrap_or_default() // a vector takes everything
}

/// More bytes than a member of so many bytes of lines has: what zlib's `deflateBound` says for any
/// level, and 18 for the member.
#[must_use]
pub(crate) const fn max_member_bytes(lines: usize) -> usize {
    lines + lines / 8 + lines / 64 + 64
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use fastrand::Rng;
    use flate2::read::MultiGzDecoder;

    use super::*;

    #[test]
    fn members_read_as_one_file_and_are_no_longer_than_said() {
        let mut random = Rng::with_seed(1);
        let (mut file, mut lines) = (Vec::new(), Vec::new());
        for size in [0, 1, 200, 20_000, 3 * MEMBER_BYTES] {
            let part: Vec<u8> = std::iter::repeat_with(|| random.u8(..))
                .take(size)
                .collect();
            let member = gzip_member(&part);
            assert!(member.len() <= max_member_bytes(size), "{size}");
            file.extend(member);
            lines.extend(part);
        }
        let mut read = Vec::new();
        MultiGzDecoder::new(&*file).read_to_end(&mut read).unwrap();
        assert!(read == lines);
    }
}
