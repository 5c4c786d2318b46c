//! What can be known of an image without decoding it: its size in pixels, from the first bytes of its file.
//! Never fetches a URL and never decodes a pixel: an image of unknown size counts as the largest there is.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use imagesize::ImageType;

/// An image in a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Image {
    /// Width and height in pixels; `None`: a remote file, or a header that could not be read.
    pub size: Option<(u64, u64)>,
    /// How closely the model is asked to look.
    pub detail: Detail,
}

/// How closely a model is asked to look at an image (OpenAI's `detail`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Detail {
    /// A thumbnail.
    Low,
    /// Not said, or left to the model, which may look closely: counted as high.
    #[default]
    Auto,
    /// In tiles or patches.
    High,
}

impl Detail {
    /// Reads OpenAI's word. An unknown one is `Auto`, which counts as much as any.
    pub fn from_word(word: &str) -> Detail {
        match word {
            "low" => Detail::Low,
            "high" => Detail::High,
            _ => Detail::Auto,
        }
    }
}

/// How much of the base64 text is looked at, first and if need be. All formats but JPEG tell their size within 64 bytes; a JPEG may
/// put a colour profile and a thumbnail first, of up to 64 KiB each.
const LOOKED_AT: [usize; 2] = [4 << 10, 256 << 10];

impl Image {
    /// An image behind a URL: `data:` (RFC 2397) or remote.
    pub fn from_url(url: &str, detail: Detail) -> Image {
        let inline = url.strip_prefix("data:").and_then(|data| data.split_once(','));
        match inline {
            Some((media_type, data)) if media_type.ends_with(";base64") => Image::from_base64(data, detail),
            _ => Image { size: None, detail },
        }
    }

    /// An image in base64.
    pub fn from_base64(data: &str, detail: Detail) -> Image {
        let size = LOOKED_AT.into_iter().find_map(|length| {
            let end = data.len().min(length);
            // Whole groups of four characters, without the padding: any prefix of a valid text is then valid.
            let characters = data.as_bytes()[..end].strip_suffix(b"==").unwrap_or(&data.as_bytes()[..end]);
            let characters = characters.strip_suffix(b"=").unwrap_or(characters);
            let characters = if end < data.len() { &characters[..end / 4 * 4] } else { characters };
            size_of(&STANDARD_NO_PAD.decode(characters).ok()?)
        });
        Image { size, detail }
    }
}

/// Only the formats that the providers take: the other readers of the crate are surface for nothing.
fn size_of(file: &[u8]) -> Option<(u64, u64)> {
    match imagesize::image_type(file).ok()? {
        ImageType::Png | ImageType::Jpeg | ImageType::Gif | ImageType::Webp => {}
        _ => return None,
    }
    let size = imagesize::blob_size(file).ok()?;
    let (width, height) = (u64::try_from(size.width).ok()?, u64::try_from(size.height).ok()?);
    (width > 0 && height > 0).then_some((width, height))
}

#[cfg(test)]
mod tests {
    use base64::engine::general_purpose::STANDARD;
    use proptest::prelude::*;

    use super::*;

    fn png(width: u32, height: u32) -> Vec<u8> {
        let mut file = b"\x89PNG\r\n\x1a\n\0\0\0\x0dIHDR".to_vec();
        file.extend(width.to_be_bytes());
        file.extend(height.to_be_bytes());
        file.extend([8, 2, 0, 0, 0, 0, 0, 0, 0]);
        file
    }

    /// A JPEG whose frame header comes after `before` bytes of application data, in segments of up to 60,000.
    fn jpeg(width: u16, height: u16, before: usize) -> Vec<u8> {
        let mut file = b"\xff\xd8".to_vec();
        let mut left = before;
        while left > 0 {
            let length = left.min(60_000);
            file.extend(b"\xff\xe1");
            file.extend(u16::try_from(length + 2).unwrap().to_be_bytes());
            file.resize(file.len() + length, 0);
            left -= length;
        }
        file.extend(b"\xff\xc0\x00\x11\x08");
        file.extend(height.to_be_bytes());
        file.extend(width.to_be_bytes());
        file.extend([3, 1, 0x22, 0, 2, 0x11, 1, 3, 0x11, 1, 0xff, 0xd9]);
        file
    }

    fn size_in(file: &[u8]) -> Option<(u64, u64)> {
        Image::from_base64(&STANDARD.encode(file), Detail::Auto).size
    }

    #[test]
    fn sizes_are_read_from_headers() {
        assert_eq!(size_in(&png(640, 480)), Some((640, 480)));
        assert_eq!(size_in(&[&png(640, 480)[..], &[7; 100_000]].concat()), Some((640, 480)));
        assert_eq!(size_in(b"GIF89a\x80\x02\xe0\x01\0\0\0"), Some((640, 480)));
        assert_eq!(size_in(&jpeg(640, 480, 0)), Some((640, 480)));
    }

    #[test]
    fn a_jpeg_may_put_a_profile_and_a_thumbnail_first() {
        assert_eq!(size_in(&jpeg(640, 480, 10_000)), Some((640, 480)));
        assert_eq!(size_in(&jpeg(640, 480, 120_000)), Some((640, 480)));
        assert_eq!(size_in(&jpeg(640, 480, 1_000_000)), None, "nobody is made to decode a megabyte");
    }

    #[test]
    fn what_cannot_be_known_is_unknown() {
        for file in [
            &b""[..],
            b"\x89PNG",
            b"<svg width='1' height='1'/>",
            b"BM\0\0",
            &png(0, 480),
            &png(640, 480)[..18],
        ] {
            assert_eq!(size_in(file), None, "{file:?}");
        }
        assert_eq!(Image::from_base64("not base64!", Detail::Auto).size, None);
    }

    #[test]
    fn only_a_data_url_is_looked_into() {
        let data = STANDARD.encode(png(640, 480));
        assert_eq!(
            Image::from_url(&format!("data:image/png;base64,{data}"), Detail::Low).size,
            Some((640, 480))
        );
        for url in [
            "https://example.com/a.png",
            "",
            "data:",
            "data:,",
            "data:image/png,raw",
            "data:image/png;base64",
        ] {
            assert_eq!(Image::from_url(url, Detail::Low), Image { size: None, detail: Detail::Low }, "{url}");
        }
    }

    proptest! {
        #[test]
        fn no_file_makes_the_reader_panic(head in 0..5_usize, tail in prop::collection::vec(any::<u8>(), 0..200)) {
            let heads: [&[u8]; 5] = [b"", b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"GIF89a", b"RIFF\0\0\0\0WEBP"];
            let _ = size_in(&[heads[head], &tail].concat());
        }
    }
}
