//! Paths under which a provider keeps something for its account: files, batches, responses.
//!
//! Law: `one_canonical_path`, as in [`super::endpoint`]. What a path leads to is said here; whether the caller owns it is
//! decided elsewhere.

/// What is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kept {
    /// `/v1/files`
    Files,
    /// `/v1/batches`
    Batches,
    /// `/v1/responses`
    Responses,
}

/// What a request wants of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish<'p> {
    /// Make one.
    Make,
    /// All that the account has: nobody's business.
    List,
    /// Look at one, or at something of it.
    Read(&'p str),
    /// End one before its time.
    Cancel(&'p str),
    /// Remove one.
    Delete(&'p str),
}

impl Kept {
    /// All of them.
    pub const ALL: [Kept; 3] = [Kept::Files, Kept::Batches, Kept::Responses];

    /// The path that a policy's route names to switch it on.
    pub fn path(self) -> &'static str {
        match self {
            Kept::Files => "/v1/files",
            Kept::Batches => "/v1/batches",
            Kept::Responses => "/v1/responses",
        }
    }

    /// What the route of a policy switches on.
    pub fn of_route(path: &str) -> Option<Kept> {
        Self::ALL.into_iter().find(|kept| kept.path() == path)
    }

    /// What a method and a path want, by a path of this kind; `None` for any other. `POST /v1/responses` is none: it is an
    /// endpoint of its own.
    pub fn find<'p>(method: &str, path: &'p str) -> Option<(Kept, Wish<'p>)> {
        let kept = Self::ALL.into_iter().find(|kept| path.starts_with(kept.path()))?;
        let rest = &path[kept.path().len()..];
        let wish = match (method, rest) {
            ("POST", "") if kept != Kept::Responses => Wish::Make,
            ("GET", "") => Wish::List,
            _ => {
                let (id, part) = match rest.strip_prefix('/')?.split_once('/') {
                    Some((id, part)) => (id, part),
                    None => (&rest[1..], ""),
                };
                let plain = !id.is_empty()
                    && id.len() <= 128
                    && id.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-'));
                if !plain {
                    return None;
                }
                match (method, kept, part) {
                    ("GET", _, "")
                    | ("GET", Kept::Files, "content")
                    | ("GET", Kept::Responses, "input_items") => Wish::Read(id),
                    ("DELETE", Kept::Files | Kept::Responses, "") => Wish::Delete(id),
                    ("POST", Kept::Batches | Kept::Responses, "cancel") => Wish::Cancel(id),
                    _ => return None,
                }
            }
        };
        Some((kept, wish))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_has_its_wishes() {
        for (method, path, found) in [
            ("POST", "/v1/files", Some((Kept::Files, Wish::Make))),
            ("GET", "/v1/files", Some((Kept::Files, Wish::List))),
            ("GET", "/v1/files/file-1/content", Some((Kept::Files, Wish::Read("file-1")))),
            ("DELETE", "/v1/files/file-1", Some((Kept::Files, Wish::Delete("file-1")))),
            ("POST", "/v1/batches/batch_1/cancel", Some((Kept::Batches, Wish::Cancel("batch_1")))),
            ("DELETE", "/v1/batches/batch_1", None),
            ("POST", "/v1/responses", None),
            ("GET", "/v1/responses/resp_1", Some((Kept::Responses, Wish::Read("resp_1")))),
            ("GET", "/v1/responses/resp_1/input_items", Some((Kept::Responses, Wish::Read("resp_1")))),
            ("GET", "/v1/files/", None),
            ("GET", "/v1/files/..", None),
            ("GET", "/v1/files/a%2Fb", None),
            ("GET", "/v1/files//content", None),
            ("GET", "/v1/filesystem", None),
        ] {
            assert_eq!(Kept::find(method, path), found, "{method} {path}");
        }
    }
}
