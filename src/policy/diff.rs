//! What one document says and another does not, setting by setting, for people.
//!
//! Both are flattened into `path: value`: a list's elements are named by their own `id`, `label`, `name`, `path` or `model` where they have
//! one, so that a tenant that moves in its list is no difference. A list of plain values is one value. Comments, order and the
//! spelling of numbers are no differences.

use std::collections::BTreeMap;
use std::fmt;

use super::problem::Problems;
use super::tree::{self, Node, Value};

/// The most differences that are told one by one.
pub const DIFFERENCES_MAX: usize = 500;

/// One setting that differs.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Difference {
    /// Where: `tenants.acme.tokens_per_minute`.
    pub path: String,
    /// What stood there.
    pub before: Option<String>,
    /// What stands there now.
    pub after: Option<String>,
}

/// All that differs.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize)]
pub struct Differences {
    /// In order of their paths, [`DIFFERENCES_MAX`] at most.
    pub settings: Vec<Difference>,
    /// How many more there are.
    pub untold: usize,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { path, before, after } = self;
        match (before, after) {
            (Some(before), Some(after)) => write!(f, "~ {path}: {before} → {after}"),
            (None, Some(after)) => write!(f, "+ {path}: {after}"),
            (Some(before), None) => write!(f, "- {path}: {before}"),
            (None, None) => write!(f, "  {path}"),
        }
    }
}

/// The differences from `before` to `after`. Both are documents that [`super::parse`] takes; an empty text has no setting.
///
/// # Errors
/// One is no YAML.
pub fn diff(before: &str, after: &str) -> Result<Differences, Problems> {
    let (before, after) = (settings(before)?, settings(after)?);
    let mut paths: Vec<&String> = before.keys().chain(after.keys()).collect();
    paths.sort_unstable();
    paths.dedup();
    let differs = paths.into_iter().filter(|path| before.get(*path) != after.get(*path));
    let mut settings: Vec<Difference> = differs
        .map(|path| Difference {
            path: path.clone(),
            before: before.get(path).cloned(),
            after: after.get(path).cloned(),
        })
        .collect();
    let untold = settings.len().saturating_sub(DIFFERENCES_MAX);
    settings.truncate(DIFFERENCES_MAX);
    Ok(Differences { settings, untold })
}

type Settings = BTreeMap<String, String>;

fn settings(text: &str) -> Result<Settings, Problems> {
    let mut settings = Settings::new();
    if text.is_empty() {
        return Ok(settings);
    }
    let tree = tree::read(text).map_err(|problem| Problems {
        source_name: "policy".to_owned(),
        errors: vec![problem],
        warnings: Vec::new(),
        untold: 0,
    })?;
    flatten(&tree, String::new(), &mut settings);
    Ok(settings)
}

fn flatten(node: &Node, path: String, settings: &mut Settings) {
    let below = |name: &str| if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
    match &node.value {
        Value::Absent => {}
        Value::Scalar { text, plain } => {
            settings.insert(path, spelled(text, *plain));
        }
        Value::Sequence(items) => {
            if let Some(plain) = plain_list(items) {
                settings.insert(path, plain);
                return;
            }
            for (index, item) in items.iter().enumerate() {
                let name = own_name(item).unwrap_or_else(|| format!("[{index}]"));
                let mut place = below(&name);
                // Two of one name are told apart by where they stand.
                if settings.range(place.clone()..).next().is_some_and(|(known, _)| is_below(known, &place)) {
                    place = below(&format!("{name}[{index}]"));
                }
                flatten(item, place, settings);
            }
        }
        Value::Mapping(entries) if entries.is_empty() => {
            settings.insert(path, "{}".to_owned());
        }
        Value::Mapping(entries) => {
            for entry in entries {
                flatten(&entry.value, below(&entry.key), settings);
            }
        }
    }
}

fn is_below(path: &str, place: &str) -> bool {
    path.strip_prefix(place).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

fn own_name(item: &Node) -> Option<String> {
    let Value::Mapping(entries) = &item.value else { return None };
    let named = ["id", "label", "name", "path", "model", "issuer", "effective"];
    named.iter().find_map(|name| {
        let entry = entries.iter().find(|entry| entry.key == *name)?;
        match &entry.value.value {
            Value::Scalar { text, .. } => Some(text.clone()),
            _ => None,
        }
    })
}

fn plain_list(items: &[Node]) -> Option<String> {
    let texts: Option<Vec<String>> = items
        .iter()
        .map(|item| match &item.value {
            Value::Scalar { text, plain } => Some(spelled(text, *plain)),
            _ => None,
        })
        .collect();
    texts.map(|texts| format!("[{}]", texts.join(", ")))
}

/// `1_000` is 1000.
fn spelled(text: &str, plain: bool) -> String {
    let number = plain
        && text.starts_with(|c: char| c.is_ascii_digit())
        && text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'_');
    if number { text.replace('_', "") } else { text.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEFORE: &str = "version: 1\n# a comment\ntiers: { free: { tokens_per_minute: 1_000 } }\ntenants:\n  - { id: acme, tier: free }\n  - { id: zeta, tier: free, allow_models: [a, b] }\n";

    fn lines(before: &str, after: &str) -> Vec<String> {
        diff(before, after).unwrap().settings.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn order_comments_and_spelling_are_no_differences() {
        let after = "tenants:\n  - { tier: free, id: zeta, allow_models: [a, b] }\n  - { id: acme, tier: free }\ntiers:\n  free:\n    tokens_per_minute: 1000\nversion: 1\n";
        assert_eq!(lines(BEFORE, after), Vec::<String>::new());
    }

    #[test]
    fn what_changed_came_or_went_is_told_by_its_path() {
        let after = BEFORE
            .replace("1_000", "2_000")
            .replace("[a, b]", "[a]")
            .replace("  - { id: acme, tier: free }\n", "  - { id: beta, tier: free }\n");
        assert_eq!(
            lines(BEFORE, &after),
            [
                "- tenants.acme.id: acme",
                "- tenants.acme.tier: free",
                "+ tenants.beta.id: beta",
                "+ tenants.beta.tier: free",
                "~ tenants.zeta.allow_models: [a, b] → [a]",
                "~ tiers.free.tokens_per_minute: 1000 → 2000",
            ]
        );
        assert_eq!(diff("", BEFORE).unwrap().settings.len(), 7);
    }

    #[test]
    fn there_is_a_bound() {
        let tenants: String = (0..400).map(|id| format!("  - {{ id: t{id}, tier: free }}\n")).collect();
        let many = diff("version: 1\ntenants: []\n", &format!("version: 1\ntenants:\n{tenants}")).unwrap();
        assert_eq!((many.settings.len(), many.untold), (DIFFERENCES_MAX, 301));
    }
}
