//! Tokens of an image, by the rule that its model's provider publishes:
//! <https://platform.openai.com/docs/guides/images-vision> and <https://docs.anthropic.com/en/docs/build-with-claude/vision>.
//! An image of unknown size counts as the largest that the rule allows.

use super::encoding::bare_name;
use crate::route::{Detail, Image};

/// How a model counts images.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImageRule {
    /// OpenAI: scaled down into 2048 × 2048, then to 768 on the shorter side, then in tiles of 512.
    Tiles {
        /// Tokens of any image; all there are at low detail.
        base: u64,
        /// Tokens of each tile.
        tile: u64,
    },
    /// OpenAI: in patches of 32, scaled down to 1,536 of them.
    Patches {
        /// Thousandths of a token per patch.
        milli_tokens_per_patch: u64,
    },
    /// Anthropic: in patches of 28 (formerly: an area of 750 pixels per token), scaled down to the most that the model looks at.
    Area {
        /// Tokens of the largest image.
        most: u64,
    },
}

/// Prefixes of model names; the first that fits decides.
const FAMILIES: [(&str, ImageRule); 19] = [
    ("gpt-4o-mini", ImageRule::Tiles { base: 2_833, tile: 5_667 }),
    ("gpt-4.1-mini", ImageRule::Patches { milli_tokens_per_patch: 1_620 }),
    ("gpt-4.1-nano", ImageRule::Patches { milli_tokens_per_patch: 2_460 }),
    ("gpt-5-mini", ImageRule::Patches { milli_tokens_per_patch: 1_620 }),
    ("gpt-5-nano", ImageRule::Patches { milli_tokens_per_patch: 2_460 }),
    ("o4-mini", ImageRule::Patches { milli_tokens_per_patch: 1_720 }),
    // gpt-5 itself is published with 70 and 140; its later versions were billed at 1.2 times that: the older, higher pair serves all.
    ("gpt-", ImageRule::OPENAI),
    ("chatgpt-", ImageRule::OPENAI),
    ("o1", ImageRule::OPENAI),
    ("o3", ImageRule::OPENAI),
    // Up to 1,568 pixels a side, about 1,600 tokens.
    ("claude-1", ImageRule::CLAUDE),
    ("claude-2", ImageRule::CLAUDE),
    ("claude-3", ImageRule::CLAUDE),
    ("claude-haiku-4", ImageRule::CLAUDE),
    ("claude-sonnet-4", ImageRule::CLAUDE),
    ("claude-opus-4-0", ImageRule::CLAUDE),
    ("claude-opus-4-1", ImageRule::CLAUDE),
    ("claude-opus-4-2", ImageRule::CLAUDE),
    // Since Opus 4.7 up to 2,576 pixels a side, 4,784 tokens.
    ("claude", ImageRule::Area { most: 4_784 }),
];

impl ImageRule {
    const OPENAI: ImageRule = ImageRule::Tiles { base: 85, tile: 170 };
    const CLAUDE: ImageRule = ImageRule::Area { most: 1_600 };

    /// The rule of a model by its name. Of an unknown one: Anthropic's for large images, the dearest of the common ones.
    pub fn for_model(name: &str) -> ImageRule {
        let name = bare_name(name);
        let known = FAMILIES.iter().find(|(family, _)| name.starts_with(family));
        known.map_or(ImageRule::Area { most: 4_784 }, |(_, rule)| *rule)
    }

    /// Tokens of an image.
    pub fn tokens(self, image: &Image) -> u64 {
        match self {
            ImageRule::Tiles { base, tile } => match image.detail {
                Detail::Low => base,
                Detail::Auto | Detail::High => base + tile * image.size.map_or(TILES_MOST, tiles),
            },
            ImageRule::Patches { milli_tokens_per_patch } => {
                let patches = image.size.map_or(PATCHES_MOST, |size| patches(size, 32)).min(PATCHES_MOST);
                (patches * milli_tokens_per_patch).div_ceil(1_000)
            }
            ImageRule::Area { most } => image.size.map_or(most, |size| {
                let area = size.0.saturating_mul(size.1).div_ceil(750);
                area.max(patches(size, 28)).min(most)
            }),
        }
    }
}

/// 2048 × 768.
const TILES_MOST: u64 = 4 * 2;

/// The most patches that are looked at.
const PATCHES_MOST: u64 = 1_536;

fn patches((width, height): (u64, u64), side: u64) -> u64 {
    width.div_ceil(side).saturating_mul(height.div_ceil(side))
}

/// Images are only ever scaled down. Rounds up at each step.
fn tiles((width, height): (u64, u64)) -> u64 {
    let (width, height) = fit((width, height), width.max(height), 2_048);
    let (width, height) = fit((width, height), width.min(height), 768);
    patches((width, height), 512)
}

/// Scales a size down so that `side` becomes `most`.
fn fit((width, height): (u64, u64), side: u64, most: u64) -> (u64, u64) {
    if side <= most {
        return (width, height);
    }
    let scale = |length: u64| length.saturating_mul(most).div_ceil(side);
    (scale(width), scale(height))
}
