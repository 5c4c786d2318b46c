//! Policies for tests: one OpenAI and one Anthropic provider at a given address, a few models, and the tenants a story names.

use super::Key;

/// A policy document in the making.
#[derive(Clone, Debug)]
pub struct Policy {
    provider: String,
    secret: String,
    settings: String,
    pool: String,
    enforcement: &'static str,
    tenants: String,
    more_providers: String,
    more_models: String,
    tiers: String,
    routes: String,
    rest: String,
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
            pool: "ceiling: { tokens_per_minute: 100_000_000 }".to_owned(),
            enforcement: "enforce",
            tenants: String::new(),
            more_providers: String::new(),
            more_models: String::new(),
            tiers: String::new(),
            routes: String::new(),
            rest: String::new(),
        }
    }

    /// Adds a provider of this name at the same address, with a pool of the same name: `settings` is the inside of a YAML flow
    /// mapping, such as `dialect: gemini`.
    pub fn provider(mut self, name: &str, settings: &str) -> Policy {
        let Policy { provider, secret, .. } = &self;
        let line = format!("  {name}: {{ base_url: \"{provider}\", api_key: \"{secret}\", {settings} }}\n");
        self.more_providers.push_str(&line);
        self
    }

    /// Adds a model of a provider that [`Policy::provider`] added.
    pub fn model(mut self, name: &str, provider: &str, settings: &str) -> Policy {
        let line = format!(
            "  {name}: {{ provider: {provider}, pool: {provider}-more, default_output_tokens: 64{settings} }}\n"
        );
        self.more_models.push_str(&line);
        self
    }

    /// Adds a tier written out in YAML, on one line.
    pub fn tier(mut self, tier: &str) -> Policy {
        self.tiers.push_str(&format!("  {tier}\n"));
        self
    }

    /// Adds a route written out in YAML, on one line.
    pub fn route(mut self, route: &str) -> Policy {
        self.routes.push_str(&format!("  - {route}\n"));
        self
    }

    /// Adds lines of YAML at the end of the document.
    pub fn and(mut self, yaml: &str) -> Policy {
        self.rest.push_str(yaml);
        self.rest.push('\n');
        self
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

    /// What the OpenAI provider's account can serve: the inside of a YAML flow mapping, such as
    /// `ceiling: { tokens_per_minute: 60_000 }`. Ample unless a story says otherwise.
    pub fn pool(mut self, settings: &str) -> Policy {
        settings.clone_into(&mut self.pool);
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
        let Policy {
            provider,
            secret,
            settings,
            pool,
            enforcement,
            tenants,
            more_providers,
            more_models,
            tiers,
            routes,
            rest,
        } = self;
        let more_pools: String = more_providers
            .lines()
            .filter_map(|line| line.trim().split_once(':'))
            .map(|(name, _)| {
                format!(
                    "  {name}-more: {{ provider: {name}, ceiling: {{ tokens_per_minute: 100_000_000 }} }}\n"
                )
            })
            .collect();
        let routes = if routes.is_empty() { String::new() } else { format!("routes:\n{routes}") };
        format!(
            r#"version: 1
providers:
  openai:    {{ dialect: openai,    base_url: "{provider}", api_key: "{secret}"{settings} }}
  anthropic: {{ dialect: anthropic, base_url: "{provider}", api_key: "{secret}"{settings} }}
{more_providers}pools:
  openai-main:    {{ provider: openai,    {pool} }}
  anthropic-main: {{ provider: anthropic, ceiling: {{ tokens_per_minute: 100_000_000 }} }}
{more_pools}models:
  gpt-5:            {{ provider: openai,    pool: openai-main,    default_output_tokens: 64, aliases: [gpt-5-latest] }}
  gpt-5-mini:       {{ provider: openai,    pool: openai-main,    default_output_tokens: 64 }}
  claude-haiku-4-5: {{ provider: anthropic, pool: anthropic-main, default_output_tokens: 64 }}
  text-embedding-4: {{ provider: openai,    pool: openai-main, stateless: true }}
{more_models}tiers:
  ample: {{ {AMPLE} }}
{tiers}default_tier: ample
tenants:
{tenants}
enforcement: {enforcement}
{routes}{rest}"#
        )
    }
}
