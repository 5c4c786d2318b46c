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
    /// OpenAI: in patches of 32, scaled down to the most that the model looks at.
    Patches {
        /// Thousandths of a token per patch.
        milli_tokens_per_patch: u64,
        /// Patches of the largest image.
        most: u64,
    },
    /// Anthropic: in patches of 28 (formerly: an area of 750 pixels per token), scaled down to the most that the model looks at.
    Area {
        /// Tokens of the largest image.
        most: u64,
    },
}

/// Prefixes of model names; the first that fits decides.
const FAMILIES: [(&str, ImageRule); 26] = [
    ("gpt-4o-mini", ImageRule::Tiles { base: 2_833, tile: 5_667 }),
    ("gpt-4.1-mini", ImageRule::patches(1_620)),
    ("gpt-4.1-nano", ImageRule::patches(2_460)),
    ("gpt-5-mini", ImageRule::patches(1_620)),
    ("gpt-5-nano", ImageRule::patches(2_460)),
    ("gpt-5.4-mini", ImageRule::patches(1_620)),
    ("gpt-5.4-nano", ImageRule::patches(2_460)),
    ("o4-mini", ImageRule::patches(1_720)),
    ("gpt-3", ImageRule::OPENAI),
    ("gpt-4", ImageRule::OPENAI),
    ("gpt-5.1", ImageRule::OPENAI),
    ("gpt-5.", ImageRule::OPENAI_LARGE),
    // Published with 70 and 140, o1 and o3 with 75 and 150: the older, higher pair serves all.
    ("gpt-5", ImageRule::OPENAI),
    ("gpt-", ImageRule::OPENAI_LARGE),
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
    /// Later models look at up to 10,000 patches; users of several measured 1.2 tokens for each.
    const OPENAI_LARGE: ImageRule = ImageRule::Patches { milli_tokens_per_patch: 1_200, most: 10_000 };
    const CLAUDE: ImageRule = ImageRule::Area { most: 1_600 };

    const fn patches(milli_tokens_per_patch: u64) -> ImageRule {
        ImageRule::Patches { milli_tokens_per_patch, most: 1_536 }
    }

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
            ImageRule::Patches { milli_tokens_per_patch, most } => {
                let patches = image.size.map_or(most, |size| patches(size, 32)).min(most);
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

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(model: &str, size: Option<(u64, u64)>, detail: Detail) -> u64 {
        ImageRule::for_model(model).tokens(&Image { size, detail })
    }

    #[test]
    fn tiles_cost_what_the_guide_says() {
        let high = |width, height| tokens("gpt-4o", Some((width, height)), Detail::High);
        assert_eq!(high(1024, 1024), 765);
        assert_eq!(high(2048, 4096), 1105);
        assert_eq!(high(4096, 2048), 1105);
        assert_eq!(high(128, 64), 255, "small images are not scaled up");
        assert_eq!(high(512, 512), 255);
        assert_eq!(high(513, 512), 425);
        assert_eq!(high(1, 1_000_000), 85 + 4 * 170);
        assert_eq!(tokens("gpt-4o", Some((4096, 8192)), Detail::Low), 85);
        assert_eq!(tokens("gpt-4o", Some((1024, 1024)), Detail::Auto), 765);
        assert_eq!(tokens("gpt-4o-mini", Some((1024, 1024)), Detail::High), 2_833 + 4 * 5_667);
    }

    #[test]
    fn patches_cost_what_the_guide_says() {
        assert_eq!(tokens("gpt-4.1-mini", Some((1024, 1024)), Detail::High), 1_659);
        assert_eq!(
            tokens("gpt-4.1-mini", Some((4000, 1474)), Detail::High),
            2_489,
            "at the most of 1,536 patches"
        );
        assert_eq!(tokens("o4-mini-2025-04-16", Some((128, 64)), Detail::High), 14);
        assert_eq!(tokens("gpt-6", Some((1024, 1024)), Detail::High), 1_229);
        assert_eq!(tokens("gpt-5.5", Some((9_000, 9_000)), Detail::High), 12_000);
    }

    #[test]
    fn areas_cost_what_the_guide_says() {
        let claude = |width, height| tokens("claude-haiku-4-5", Some((width, height)), Detail::Auto);
        assert_eq!(claude(200, 200), 64, "8 × 8 patches; the older formula gives 54");
        assert_eq!(claude(1000, 1000), 1_334);
        assert_eq!(claude(1092, 1092), 1_590);
        assert_eq!(claude(8000, 8000), 1_600);
        assert_eq!(tokens("claude-opus-4-8", Some((8000, 8000)), Detail::Auto), 4_784);
        assert_eq!(tokens("anthropic/claude-3-5-sonnet-latest", Some((8000, 8000)), Detail::Auto), 1_600);
    }

    #[test]
    fn an_image_of_unknown_size_costs_the_most() {
        assert_eq!(tokens("gpt-4o", None, Detail::Auto), 1_445);
        assert_eq!(tokens("gpt-4o", None, Detail::Low), 85);
        assert_eq!(tokens("gpt-4.1-nano", None, Detail::Auto), 3_779);
        assert_eq!(tokens("claude-sonnet-4-5", None, Detail::Auto), 1_600);
        for (family, rule) in FAMILIES {
            for size in [
                (1, 1),
                (512, 2_048),
                (768, 2_048),
                (1_568, 1_568),
                (8_000, 8_000),
                (1, u64::MAX),
                (u64::MAX, u64::MAX),
            ] {
                let known = rule.tokens(&Image { size: Some(size), detail: Detail::High });
                let unknown = rule.tokens(&Image { size: None, detail: Detail::High });
                assert!(known <= unknown, "{family} at {size:?}: {known} > {unknown}");
            }
        }
    }
}
