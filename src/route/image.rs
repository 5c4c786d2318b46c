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
