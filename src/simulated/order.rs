//! What a caller ordered and what will be served: the part of a request that both dialects share.
//!
//! The simulated provider decides its whole output before the first byte, so a request's bill is known when it is judged.

use super::books::Bill;
use super::steering::{Skew, Steering};

/// Output tokens when neither the request nor `x-sim` says how many.
const DEFAULT_OUTPUT: u64 = 16;

/// A parsed request.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Order {
    /// The model named.
    pub model: String,
    /// The provider's count of the prompt, before skew.
    pub prompt: u64,
    /// The most output tokens a choice may have.
    pub max_output: Option<u64>,
    /// How many choices.
    pub choices: u64,
    /// Whether the answer is streamed.
    pub stream: bool,
    /// Whether an OpenAI stream reports usage.
    pub include_usage: bool,
    /// The tool that would be called, if there are any.
    pub tool: Option<String>,
    /// Whether the request forces the call.
    pub tool_forced: bool,
}

/// What will be served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// The model named.
    pub model: String,
    /// How many choices.
    pub choices: u64,
    /// How many of them finish.
    pub finishing: u64,
    /// Output tokens of each choice, reasoning included.
    pub output: u64,
    /// Of these, reasoning.
    pub reasoning: u64,
    /// Whether the request's ceiling cut the output short.
    pub capped: bool,
    /// Content chunks of each choice in a stream.
    pub chunks: u64,
    /// The tool to call.
    pub tool: Option<String>,
    /// Whether usage is reported.
    pub usage: bool,
    /// Whether the answer is streamed.
    pub stream: bool,
    /// Whether an OpenAI stream reports usage.
    pub include_usage: bool,
    /// What all this costs.
    pub bill: Bill,
}

impl Plan {
    /// Settles what will be served for an order, steered.
    ///
    /// # Errors
    /// A sentence, when the steering asks for a call of a tool that the order does not have.
    pub fn new(order: Order, steering: &Steering, house_skew: Skew) -> Result<Self, String> {
        let wanted = steering.tokens.unwrap_or(DEFAULT_OUTPUT);
        let output = order.max_output.map_or(wanted, |most| most.min(wanted));
        let reasoning = steering.reasoning.min(output);
        let visible = output - reasoning;
        let tool = match (order.tool, order.tool_forced || steering.tool) {
            (tool, true) if tool.is_some() => tool,
            (None, true) if steering.tool => {
                return Err("x-sim: tool=1 needs `tools` in the request".to_owned());
            }
            _ => None,
        };
        let input = steering.skew.unwrap_or(house_skew).apply(order.prompt);
        let cache_read = steering.cache_read.min(input);
        let cache_write = steering.cache_write.min(input - cache_read);
        Ok(Self {
            model: order.model,
            choices: order.choices,
            finishing: steering.n_finish.unwrap_or(order.choices).min(order.choices),
            output,
            reasoning,
            capped: output < wanted,
            chunks: steering.chunks.unwrap_or(visible).min(visible),
            tool,
            usage: !steering.usage_off,
            stream: order.stream,
            include_usage: order.include_usage,
            bill: Bill { input, output: output * order.choices, cache_read, cache_write },
        })
    }

    /// Output tokens of each choice that can be read.
    #[must_use]
    pub fn visible(&self) -> u64 {
        self.output - self.reasoning
    }

    /// How the visible tokens of a choice fall on its chunks: pairs of tokens in a chunk and how many such chunks.
    #[must_use]
    pub fn portions(&self) -> [(u64, u64); 2] {
        let Some(small) = self.visible().checked_div(self.chunks) else { return [(0, 0); 2] };
        let larger = self.visible() % self.chunks;
        [(small + 1, larger), (small, self.chunks - larger)]
    }
}

/// A text of exactly so many tokens: one word over and over, which both tokenizers keep apart and whole.
#[must_use]
pub fn words(tokens: u64) -> String {
    const WORD: &str = " token";
    WORD.repeat(usize::try_from(tokens).unwrap_or(usize::MAX / WORD.len()))
}

#[cfg(test)]
mod tests {
    use super::super::count;
    use super::*;

    fn order() -> Order {
        Order { model: "gpt-5".to_owned(), prompt: 100, choices: 1, ..Order::default() }
    }

    fn plan(order: Order, steering: &str) -> Plan {
        Plan::new(order, &Steering::parse(steering).unwrap(), Skew::NONE).unwrap()
    }

    #[test]
    fn words_cost_what_they_say() {
        for tokens in [0, 1, 2, 17, 1_000] {
            assert_eq!(count::text(&words(tokens)), tokens);
            assert_eq!(count::embedded_text(&words(tokens)), tokens);
        }
    }

    #[test]
    fn the_output_is_sixteen_tokens_or_the_ceiling() {
        assert_eq!((plan(order(), "").output, plan(order(), "").capped), (16, false));
        let capped = plan(Order { max_output: Some(5), ..order() }, "");
        assert_eq!((capped.output, capped.capped), (5, true));
        let roomy = plan(Order { max_output: Some(500), ..order() }, "tokens=200");
        assert_eq!((roomy.output, roomy.capped), (200, false));
        assert_eq!(plan(Order { max_output: Some(50), ..order() }, "tokens=200").output, 50);
    }

    #[test]
    fn choices_multiply_the_output_and_not_the_prompt() {
        let bill = plan(Order { choices: 3, ..order() }, "tokens=10").bill;
        assert_eq!((bill.input, bill.output), (100, 30));
    }

    #[test]
    fn the_request_overrides_the_house_skew() {
        let house: Skew = "1.5".parse().unwrap();
        let input = |steering: &str| {
            Plan::new(order(), &Steering::parse(steering).unwrap(), house).unwrap().bill.input
        };
        assert_eq!((input(""), input("skew=1.07")), (150, 107));
    }

    #[test]
    fn cached_parts_fit_in_the_prompt() {
        let bill = plan(order(), "cache_read=70,cache_write=70").bill;
        assert_eq!((bill.input, bill.cache_read, bill.cache_write), (100, 70, 30));
    }

    #[test]
    fn portions_add_up_whatever_the_chunks() {
        for tokens in 0..40 {
            for chunks in 1..50 {
                let plan = plan(order(), &format!("tokens={tokens},chunks={chunks},reasoning=3"));
                let portions = plan.portions();
                let sum: u64 = portions.iter().map(|(size, times)| size * times).sum();
                let count: u64 = portions.iter().map(|(_, times)| times).sum();
                assert_eq!((sum, count), (plan.visible(), chunks.min(plan.visible())));
            }
        }
    }

    #[test]
    fn a_tool_is_called_when_forced_or_steered() {
        let with =
            |tool: Option<&str>, tool_forced| Order { tool: tool.map(str::to_owned), tool_forced, ..order() };
        assert_eq!(plan(with(Some("look"), false), "").tool, None);
        assert_eq!(plan(with(Some("look"), true), "").tool.as_deref(), Some("look"));
        assert_eq!(plan(with(Some("look"), false), "tool=1").tool.as_deref(), Some("look"));
        assert!(Plan::new(with(None, false), &Steering::parse("tool=1").unwrap(), Skew::NONE).is_err());
    }
}
