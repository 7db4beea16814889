//! Bodies that their producer compressed.

use std::io::Read;

use bytes::Bytes;

/// In the flag of a message: its body is compressed, and how.
const COMPRESSED: i32 = 1;
const HOW: i32 = 0x700;
const LZ4: i32 = 0x100;
const ZSTD: i32 = 0x200;
const ZLIB: i32 = 0x300;
/// The first bytes of LZ4's own format, which clients in Java write. Others write one block and
/// its length before it.
const LZ4_FRAME: [u8; 4] = [0x04, 0x22, 0x4d, 0x18];
/// A longer body is rather an attack: brokers take 4 MiB unless told otherwise.
const BODY_MAX: usize = 64 * 1024 * 1024;

/// What of a message's flag says how its body is compressed; `None` if it is not.
pub(super) fn compression(flag: i32) -> Option<i32> {
    (flag & COMPRESSED != 0).then_some(flag & (COMPRESSED | HOW))
}

/// The body as it was before. The error says why it cannot be had.
pub(super) fn unpack(flag: i32, body: &[u8]) -> Result<Bytes, String> {
    match flag & HOW {
        LZ4 if body.starts_with(&LZ4_FRAME) => read(lz4_flex::frame::FrameDecoder::new(body), "LZ4"),
        LZ4 => block(body),
        ZSTD => match zstd::stream::read::Decoder::with_buffer(body) {
            Ok(decoder) => read(decoder, "Zstandard"),
            Err(why) => Err(broken("Zstandard", why)),
        },
        // Before there was a choice, there was this one.
        0 | ZLIB => read(flate2::read::ZlibDecoder::new(body), "zlib"),
        other => Err(format!("nobody knows the compression {}", other >> 8)),
    }
}

fn read(decoder: impl Read, how: &str) -> Result<Bytes, String> {
    let mut body = Vec::new();
    // One byte more than may be there.
    let found = decoder.take(BODY_MAX as u64 + 1).read_to_end(&mut body);
    match found {
        Ok(size) if size <= BODY_MAX => Ok(body.into()),
        Ok(_) => Err(too_long()),
        Err(why) => Err(broken(how, why)),
    }
}

fn block(body: &[u8]) -> Result<Bytes, String> {
    let (size, rest) = lz4_flex::block::uncompressed_size(body).map_err(|why| broken("LZ4", why))?;
    if size > BODY_MAX {
        return Err(too_long());
    }
    lz4_flex::block::decompress(rest, size).map(Bytes::from).map_err(|why| broken("LZ4", why))
}

fn broken(how: &str, why: impl std::fmt::Display) -> String {
    format!("it is said to be compressed with {how}, and is not ({why})")
}

fn too_long() -> String {
    format!("uncompressed it is longer than {} MiB", BODY_MAX / 1024 / 1024)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn zlib(body: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(body).unwrap();
        encoder.finish().unwrap()
    }

    fn frame(body: &[u8]) -> Vec<u8> {
        let mut encoder = lz4_flex::frame::FrameEncoder::new(Vec::new());
        encoder.write_all(body).unwrap();
        encoder.finish().unwrap()
    }

    #[test]
    fn every_compression_of_producers_is_read() {
        let body = b"order-1 order-1 order-1 order-1";
        let zstd = zstd::stream::encode_all(&body[..], 1).unwrap();
        for (how, packed) in [
            (0, zlib(body)),
            (ZLIB, zlib(body)),
            (ZSTD, zstd),
            (LZ4, frame(body)),
            (LZ4, lz4_flex::block::compress_prepend_size(body)),
        ] {
            assert_eq!(compression(COMPRESSED | how | 4), Some(COMPRESSED | how));
            assert_eq!(unpack(COMPRESSED | how, &packed).unwrap(), &body[..], "{how:x}");
        }
        assert_eq!(compression(2 | 4), None);
    }

    #[test]
    fn what_cannot_be_read_says_why() {
        let bomb = zlib(&vec![0; BODY_MAX + 1]);
        let huge = [&u32::MAX.to_le_bytes()[..], b"x"].concat();
        for (how, packed, word) in [
            (0, &b"junk"[..], "zlib"),
            (LZ4, b"\x05\0\0\0junk", "LZ4"),
            (LZ4, b"x", "LZ4"),
            (ZSTD, b"junk", "Zstandard"),
            (0x400, b"junk", "compression 4"),
            (ZLIB, &bomb, "64 MiB"),
            (LZ4, &huge, "64 MiB"),
        ] {
            let why = unpack(how, packed).unwrap_err();
            assert!(why.contains(word), "{how:x}: {why}");
        }
    }
}
