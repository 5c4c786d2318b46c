//! The validated policy: plain values, names as keys, units in the field names.
//!
//! Everything here has passed [`super::parse`]: names that refer to something do refer to it, rates and capacities are between
//! 1 and [`MAX_AMOUNT`], and no source position is kept. Rates are per minute; money is in millionths of a US dollar.

mod money;

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

pub use crate::route::{Dialect, FieldPath};

pub use self::money::{Budget, BudgetAmount, LongContext, OnExhausted, Period, Price, PriceList};
pub use super::identity::{Issuer, IssuerKeys, SignatureAlgorithm};
use super::problem::Problem;
use super::secret::SecretReference;
use super::units::{IpNetwork, Ratio};

/// The largest number a limit may have, in tokens, requests or calls: products of two of them fit 128 bits with room to spare.
pub const MAX_AMOUNT: u64 = 1_000_000_000_000_000;

/// A whole policy document, checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    /// The version of the document's format; this release reads version 1.
    pub version: u64,
    /// Who serves models, by name.
    pub providers: BTreeMap<String, Provider>,
    /// What the providers' accounts can serve, by name.
    pub pools: BTreeMap<String, Pool>,
    /// The models callers may name, by name.
    pub models: BTreeMap<String, Model>,
    /// The models' other names, each with the name it stands for.
    pub aliases: BTreeMap<String, String>,
    /// The bundles of limits, by name.
    pub tiers: BTreeMap<String, Tier>,
    /// The tier of a tenant that names none.
    pub default_tier: Option<String>,
    /// The tenants, in document order.
    pub tenants: Vec<Tenant>,
    /// Who else may say which tenant a caller is, by signed tokens.
    pub identity: Vec<Issuer>,
    /// Callers without a credential; refused when absent.
    pub anonymous: Option<Anonymous>,
    /// Routes with settings of their own, in document order; see [`Policy::route_of`].
    pub routes: Vec<Route>,
    /// Shared tools with a rate of their own, by name.
    pub tools: BTreeMap<String, Tool>,
    /// Price lists by the day they take effect, oldest first.
    pub price_book: Vec<PriceList>,
    /// Where alerts go.
    pub alerts: Option<Alerts>,
    /// Whether limits refuse; see [`Policy::enforcement_of`].
    pub enforcement: EnforcementMode,
    /// What happens when nobody can decide; see [`Policy::on_unavailable_of`].
    pub on_unavailable: OnUnavailable,
    /// What a caller's disconnect costs; see [`Policy::on_disconnect_of`].
    pub on_disconnect: Option<OnDisconnect>,
    /// Proxies whose `X-Forwarded-For` is believed.
    pub trusted_proxies: Vec<IpNetwork>,
    /// What is allowed but probably not meant, in document order.
    pub warnings: Vec<Problem>,
}

impl Policy {
    /// A document that names nothing and nobody.
    #[must_use]
    pub fn nothing() -> Self {
        Self {
            version: 1,
            providers: BTreeMap::new(),
            pools: BTreeMap::new(),
            models: BTreeMap::new(),
            aliases: BTreeMap::new(),
            tiers: BTreeMap::new(),
            default_tier: None,
            tenants: Vec::new(),
            identity: Vec::new(),
            anonymous: None,
            routes: Vec::new(),
            tools: BTreeMap::new(),
            price_book: Vec::new(),
            alerts: None,
            enforcement: EnforcementMode::Enforce,
            on_unavailable: OnUnavailable::Refuse,
            on_disconnect: None,
            trusted_proxies: Vec::new(),
            warnings: Vec::new(),
        }
    }
}

/// Who serves models, and how to reach it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Provider {
    /// The language it speaks.
    pub dialect: Dialect,
    /// `http://` or `https://`, host, optional port and path prefix; no trailing slash.
    pub base_url: String,
    /// The version of Azure's API (`api-version`) where it is served by Azure: deployments in paths, `api-key`. Only with the OpenAI
    /// dialect.
    pub azure_api_version: Option<String>,
    /// Where its key is kept; absent for a provider that asks for none.
    pub api_key: Option<SecretReference>,
    /// Whether to ask for usage in streams (`stream_options.include_usage`); some providers refuse the option.
    pub include_usage: bool,
    /// How long to wait for it.
    pub timeouts: Timeouts,
    /// Attempts per request, the first included: 1 to 3.
    pub max_attempts: u32,
}

/// How long to wait for a provider.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timeouts {
    /// Until the connection stands.
    pub connect: Duration,
    /// From the request sent to the first byte of the answer.
    pub first_byte: Duration,
    /// Between two pieces of an answer.
    pub idle: Duration,
    /// From the request sent to the end of the answer.
    pub total: Duration,
}

impl Timeouts {
    /// The longest `total`: a reservation is held a little longer than any exchange may take.
    pub const LONGEST: Duration = Duration::from_secs(60 * 60);
}

impl Default for Timeouts {
    /// Ten minutes in all is what the official SDKs allow; the first byte of an answer that is not streamed comes at its end.
    fn default() -> Timeouts {
        Timeouts {
            connect: Duration::from_secs(5),
            first_byte: Duration::from_secs(300),
            idle: Duration::from_secs(60),
            total: Duration::from_secs(600),
        }
    }
}

/// What one provider account can serve: the scarce thing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pool {
    /// The provider whose account it is.
    pub provider: String,
    /// What the provider allows.
    pub ceiling: Ceiling,
    /// The part of the ceiling handed out as rate.
    pub guard: Ratio,
    /// The part of the ceiling kept for tenants below their floor.
    pub reserve: Ratio,
    /// Tokens that may be claimed at once.
    pub burst_tokens: u64,
    /// Whether refunds may be sent again in a later minute.
    pub refund_credit: RefundCredit,
    /// Whether floors are promised.
    pub floors: FloorMode,
    /// Pools that take batch and stateless requests when this one is full, in order.
    pub overflow: Vec<String>,
}

/// A provider account's limits per minute; at least one is present.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Ceiling {
    /// Input and output tokens together.
    pub tokens_per_minute: Option<u64>,
    /// Input tokens.
    pub input_tokens_per_minute: Option<u64>,
    /// Output tokens.
    pub output_tokens_per_minute: Option<u64>,
    /// Requests.
    pub requests_per_minute: Option<u64>,
}

impl Ceiling {
    /// All tokens per minute: the total where one is given, else input and output added up
    /// where both are.
    #[must_use]
    pub fn all_tokens_per_minute(&self) -> Option<u64> {
        let parts = self.input_tokens_per_minute.zip(self.output_tokens_per_minute);
        self.tokens_per_minute.or(parts.map(|(input, output)| input.saturating_add(output)))
    }
}

/// Whether a refund may be sent again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RefundCredit {
    /// Refunded tokens return to the pool.
    Full,
    /// They do not: for providers that count what was asked for.
    None,
}

/// Whether floors are promised.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FloorMode {
    /// Their sum must fit under the guard; a policy where it does not is refused.
    Guaranteed,
    /// They are served from the reserve while it lasts.
    BestEffort,
}

/// A model callers may name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Model {
    /// Its name in the policy, as callers write it.
    pub name: String,
    /// Who serves it.
    pub provider: String,
    /// The pool it draws from.
    pub pool: String,
    /// Other names callers may use.
    pub aliases: Vec<String>,
    /// The name the provider knows it by; the same as `name` unless the document says otherwise.
    pub upstream_model: String,
    /// Output tokens reserved when a request names no ceiling.
    pub default_output_tokens: u64,
    /// The largest output ceiling a request may name.
    pub max_output_tokens: Option<u64>,
    /// The most tokens that a request may have it read; not checked when absent.
    pub context_tokens: Option<u64>,
    /// Members that a request for it may not have.
    pub forbid_fields: Vec<FieldPath>,
    /// Models of the same dialect to try when this one cannot serve, in order.
    pub fallbacks: Vec<String>,
    /// Whether any pool may serve it because nothing is kept between requests.
    pub stateless: bool,
    /// How its input is counted.
    pub tokenizer: Tokenizer,
}

/// How input tokens are counted before a request is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tokenizer {
    /// OpenAI's `o200k_base`.
    O200k,
    /// OpenAI's `cl100k_base`.
    Cl100k,
    /// UTF-8 bytes divided by a ratio, for models whose tokenizer is not published.
    Bytes {
        /// Bytes per token in thousandths: 3500 is 3.5 bytes. Lower errs higher.
        bytes_per_token_milli: u64,
    },
}

/// Limits as written: what is absent is inherited or unlimited. [`LimitSettings::resolve`] fills in capacities.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LimitSettings {
    /// Input and output tokens together, per minute.
    pub tokens_per_minute: Option<u64>,
    /// Input tokens per minute.
    pub input_tokens_per_minute: Option<u64>,
    /// Output tokens per minute.
    pub output_tokens_per_minute: Option<u64>,
    /// Tokens that may be claimed at once.
    pub burst_tokens: Option<u64>,
    /// Input tokens that may be claimed at once.
    pub burst_input_tokens: Option<u64>,
    /// Output tokens that may be claimed at once.
    pub burst_output_tokens: Option<u64>,
    /// Requests per minute.
    pub requests_per_minute: Option<u64>,
    /// Requests that may be made at once.
    pub burst_requests: Option<u64>,
    /// Requests open at the same time.
    pub max_inflight: Option<u64>,
}

/// Limits in effect; what is absent is unlimited.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Limits {
    /// Input and output tokens together.
    pub tokens: Option<Rate>,
    /// Input tokens.
    pub input_tokens: Option<Rate>,
    /// Output tokens.
    pub output_tokens: Option<Rate>,
    /// Requests.
    pub requests: Option<Rate>,
    /// Requests open at the same time.
    pub max_inflight: Option<u64>,
}

/// A bucket's two numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    /// Refill per minute.
    pub per_minute: u64,
    /// Capacity: what may be claimed at once.
    pub burst: u64,
}

/// A bundle of limits that tenants share by name (each has buckets of its own).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Tier {
    /// The limits.
    pub limits: LimitSettings,
    /// The protected part when a pool is scarce.
    pub floor: Option<Floor>,
    /// The share of what is left beyond floors, relative to other tenants; at least 1.
    pub weight: Option<u64>,
    /// Caps per calendar period.
    pub budgets: Vec<Budget>,
    /// Limits per end user of each of its tenants.
    pub users: Option<Users>,
    /// What happens when nobody can decide.
    pub on_unavailable: Option<OnUnavailable>,
    /// What a caller's disconnect costs.
    pub on_disconnect: Option<OnDisconnect>,
}

/// The protected part of a tenant's rate when a pool is scarce.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Floor {
    /// A share of the tenant's own tokens per minute.
    Share(Ratio),
    /// A number of tokens per minute.
    TokensPerMinute(u64),
}

/// A customer: billed, and owner of keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tenant {
    /// Its name everywhere.
    pub id: String,
    /// Its tier: named, or the document's default.
    pub tier: String,
    /// Limits that replace the tier's one by one; see [`Policy::effective_limits`].
    pub limits: LimitSettings,
    /// Replaces the tier's floor.
    pub floor: Option<Floor>,
    /// Replaces the tier's weight.
    pub weight: Option<u64>,
    /// Budgets of its own; when there are any, the tier's do not hold. See [`Policy::budgets_of`].
    pub budgets: Vec<Budget>,
    /// Limits per model; at most one holds, see [`Tenant::model_rule`].
    pub models: Vec<ModelRule>,
    /// Limits per end user, in place of the tier's. See [`Policy::users_of`].
    pub users: Option<Users>,
    /// Times of the week with other limits, in document order; the first that holds wins.
    pub windows: Vec<Window>,
    /// The most of a pool it may use, by pool.
    pub pool_shares: BTreeMap<String, Ratio>,
    /// The most of its own rate that may go to fallback models.
    pub fallback_share: Option<Ratio>,
    /// Subdivisions that keys belong to.
    pub projects: Vec<Project>,
    /// The models it may name; all when absent. Names, not aliases.
    pub allow_models: Option<Vec<String>>,
    /// Its keys.
    pub keys: Vec<Key>,
    /// The class of its requests where neither key nor route says.
    pub class: Option<Class>,
    /// Whether its limits refuse; see [`Policy::enforcement_of`].
    pub enforcement: Option<Enforcement>,
    /// What happens when nobody can decide.
    pub on_unavailable: Option<OnUnavailable>,
    /// What a caller's disconnect costs.
    pub on_disconnect: Option<OnDisconnect>,
}

/// Which models a rule binds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ModelPattern {
    /// One model, by its name in the policy.
    Exact(String),
    /// Every model whose name begins so.
    Prefix(String),
}

/// A tenant's limits for some models, within its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelRule {
    /// The models.
    pub pattern: ModelPattern,
    /// The limits.
    pub limits: LimitSettings,
}

/// A tenant's limits for each of its end users, within its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Users {
    /// Where a request names its user.
    pub from: UserSource,
    /// Whether a request that names none is refused; otherwise it has the tenant's limits alone.
    pub required: bool,
    /// The limits of each user.
    pub limits: LimitSettings,
}

/// Where a request names its end user. The caller writes it, so it may only subdivide.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UserSource {
    /// A field of the JSON body: `body.metadata.user_id` is `["metadata", "user_id"]`.
    Body(Vec<String>),
    /// A header, in lower case.
    Header(String),
}

/// A time of the week with other limits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Window {
    /// The days, Monday first, without repeats.
    pub days: Vec<Weekday>,
    /// The first minute of the day it holds: 0 to 1439.
    pub from_minute: u64,
    /// The minute it ends before: `from_minute` < `to_minute` ≤ 1440.
    pub to_minute: u64,
    /// The IANA time zone of days and minutes.
    pub zone: String,
    /// Limits that replace the tenant's one by one while it holds.
    pub limits: LimitSettings,
}

/// A day of the week.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs)]
pub enum Weekday {
    Monday,
    Tuesday,
    Wednesday,
    Thursday,
    Friday,
    Saturday,
    Sunday,
}

impl Weekday {
    /// All of them, in order.
    pub const ALL: [Weekday; 7] = [
        Weekday::Monday,
        Weekday::Tuesday,
        Weekday::Wednesday,
        Weekday::Thursday,
        Weekday::Friday,
        Weekday::Saturday,
        Weekday::Sunday,
    ];
}

/// A subdivision of a tenant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Project {
    /// Its name within the tenant.
    pub id: String,
    /// Its limits, within the tenant's.
    pub limits: LimitSettings,
    /// Caps per calendar period, within the tenant's.
    pub budgets: Vec<Budget>,
}

/// A credential of a tenant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Key {
    /// Its name within the tenant.
    pub label: String,
    /// SHA-256 of the whole key.
    pub hash: KeyHash,
    /// Its limits: they subdivide the tenant's, never add to them.
    pub limits: LimitSettings,
    /// Caps per calendar period, within the tenant's.
    pub budgets: Vec<Budget>,
    /// The project its requests belong to.
    pub project: Option<String>,
    /// The class of its requests.
    pub class: Option<Class>,
    /// The instant from which it is refused.
    pub expires: Option<jiff::Timestamp>,
}

/// SHA-256 of a key. Prints and parses as `sha256:` and 64 lowercase hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyHash(pub [u8; 32]);

impl KeyHash {
    /// The hash of a key.
    #[must_use]
    pub fn of(key: &[u8]) -> KeyHash {
        use sha2::Digest as _;
        KeyHash(sha2::Sha256::digest(key).into())
    }

    /// Reads `sha256:` and 64 lowercase hexadecimal digits; `None` for anything else.
    #[must_use]
    pub fn parse(text: &str) -> Option<KeyHash> {
        let digits = text.strip_prefix("sha256:")?;
        if digits.bytes().any(|byte| byte.is_ascii_uppercase()) {
            return None;
        }
        let mut hash = [0; 32];
        hex::decode_to_slice(digits, &mut hash).ok()?;
        Some(KeyHash(hash))
    }
}

impl fmt::Display for KeyHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sha256:{}", hex::encode(self.0))
    }
}

impl fmt::Debug for KeyHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// How patient a request is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// Someone waits for it.
    Interactive,
    /// It may be deferred.
    Batch,
}

/// Whether limits refuse, for the whole document.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EnforcementMode {
    /// They do.
    Enforce,
    /// They only count and log what they would refuse.
    Shadow,
    /// They do for tenants whose own entry says `enforcement: enforce`, and are shadows for all others: the way to introduce
    /// limits to customers who never had any.
    EnforceNewTenants,
}

/// Whether a tenant's limits refuse.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Enforcement {
    /// They do.
    Enforce,
    /// They only count and log what they would refuse.
    Shadow,
}

/// What happens to a request when nobody can decide on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnUnavailable {
    /// It is refused.
    Refuse,
    /// It is admitted, counted and logged as unenforced.
    Admit,
}

/// What an answer costs whose caller went away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnDisconnect {
    /// What was reported or counted until then, in rates and in budgets.
    Counted,
    /// The estimate, in rates and in budgets.
    Estimate,
}

/// The tenant under which callers without a credential are counted.
pub const ANONYMOUS: &str = "anonymous";

/// Limits for callers without a credential: one category, shared by all of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Anonymous {
    /// The limits of the whole category.
    pub limits: LimitSettings,
    /// The limits of each address within it.
    pub per_ip: LimitSettings,
    /// Caps of the whole category.
    pub budgets: Vec<Budget>,
    /// The models it may name; all when absent. Names, not aliases.
    pub allow_models: Option<Vec<String>>,
}

/// A route with settings of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Route {
    /// The path, exactly as requested.
    pub path: String,
    /// The provider a passed-through route goes to.
    pub provider: Option<String>,
    /// The class of its requests where the key does not say.
    pub class: Option<Class>,
    /// Whether any pool may serve it because nothing is kept between requests.
    pub stateless: bool,
    /// Whether requests may leave something with the provider and take it up again: stored and background responses.
    pub stateful: bool,
    /// Members that its requests may not have.
    pub forbid_fields: Vec<FieldPath>,
    /// A fixed price in tokens, for routes whose bodies are not read.
    pub cost_tokens: Option<u64>,
    /// How much output is reserved.
    pub output_estimate: OutputEstimate,
}

/// How much output is reserved before the answer is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OutputEstimate {
    /// The request's own ceiling, else the model's default.
    #[default]
    Ceiling,
    /// A percentile (1 to 99) of what this route and model lately produced, at most the ceiling.
    Learned {
        /// The percentile.
        percentile: u64,
    },
    /// Nothing: only input is reserved.
    None,
}

/// A shared tool with a rate of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tool {
    /// Calls per minute, and at once.
    pub calls: Rate,
    /// Who divides them.
    pub callers: Vec<ToolCaller>,
}

/// One of those who divide a tool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolCaller {
    /// Its name: a tenant or an agent.
    pub id: String,
    /// Its share beyond the floors, relative to the others.
    pub weight: u64,
    /// Calls per minute it always has.
    pub floor: u64,
}

/// Where alerts go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Alerts {
    /// The URL they are posted to.
    pub webhook: String,
    /// The secret they are signed with.
    pub secret: Option<SecretReference>,
    /// Whether the URL may lead into the node's own network.
    pub allow_private: bool,
}
