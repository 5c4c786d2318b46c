//! Policies for tests: one OpenAI and one Anthropic provider at a given address, a few models, and the tenants a story names.

use super::Key;

/// A policy document in the making.
#[derive(Clone, Debug)]
pub struct Policy {
    provider: String,
    secret: String,
    settings: String,
    enforcement: &'static str,
    tenants: String,
}

/// The environment variable that holds the providers' credential: [`super::Process::serve`] sets it.
pub const PROVIDER_KEY: &str = "SIMULATED_PROVIDER_KEY";

/// Room enough that no limit is met: for stories about something else.
pub const AMPLE: &str = "tokens_per_minute: 1_000_000, requests_per_minute: 60_000, max_inflight: 1_000";

impl Policy {
    /// A policy whose providers both live at `provider`, an `http://…` URL without a path.
    pub fn at(provider: &str) -> Policy {
        Policy {
            provider: provider.to_owned(),
            secret: format!("env:{PROVIDER_KEY}"),
            settings: String::new(),
            enforcement: "enforce",
            tenants: String::new(),
        }
    }

    /// The providers' credential lies elsewhere: `file:PATH`.
    pub fn secret(mut self, reference: &str) -> Policy {
        reference.clone_into(&mut self.secret);
        self
    }

    /// Adds settings to both providers: the inside of a YAML flow mapping, such as `timeouts: { first_byte: 100ms }`.
    pub fn providers(mut self, settings: &str) -> Policy {
        self.settings.push_str(", ");
        self.settings.push_str(settings);
        self
    }

    /// Adds a tenant with one key, held by these limits: the inside of a YAML flow mapping,
    /// such as `tokens_per_minute: 100, max_inflight: 2`.
    pub fn tenant(self, id: &str, key: &Key, limits: &str) -> Policy {
        let hash = &key.hash;
        self.tenant_yaml(&format!(
            "{{ id: {id}, {limits}, keys: [{{ label: production, hash: \"{hash}\" }}] }}"
        ))
    }

    /// Adds a tenant written out in YAML, on one line.
    pub fn tenant_yaml(mut self, tenant: &str) -> Policy {
        self.tenants.push_str(&format!("  - {tenant}\n"));
        self
    }

    /// Counts what would be refused, refuses nothing.
    pub fn shadow(mut self) -> Policy {
        self.enforcement = "shadow";
        self
    }

    /// The document.
    pub fn yaml(&self) -> String {
        let Policy { provider, secret, settings, enforcement, tenants } = self;
        format!(
            r#"version: 1
providers:
  openai:    {{ dialect: openai,    base_url: "{provider}", api_key: "{secret}"{settings} }}
  anthropic: {{ dialect: anthropic, base_url: "{provider}", api_key: "{secret}"{settings} }}
pools:
  openai-main:    {{ provider: openai,    ceiling: {{ tokens_per_minute: 100_000_000 }} }}
  anthropic-main: {{ provider: anthropic, ceiling: {{ tokens_per_minute: 100_000_000 }} }}
models:
  gpt-5:            {{ provider: openai,    pool: openai-main,    default_output_tokens: 64, aliases: [gpt-5-latest] }}
  gpt-5-mini:       {{ provider: openai,    pool: openai-main,    default_output_tokens: 64 }}
  claude-haiku-4-5: {{ provider: anthropic, pool: anthropic-main, default_output_tokens: 64 }}
  text-embedding-4: {{ provider: openai,    pool: openai-main, stateless: true }}
tiers:
  ample: {{ {AMPLE} }}
default_tier: ample
tenants:
{tenants}
enforcement: {enforcement}
"#
        )
    }
}
