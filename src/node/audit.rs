//! The audit file: a line for each decision of the owners on this node, for whoever judges a cluster from outside.
//!
//! Off unless `--audit-file` asks for it. Each line is one `write(2)` to a file that is only appended to, so that a process which is
//! killed leaves whole lines. Times are nanoseconds by [`clock::audit_now`]: a test that bends all other clocks leaves that one alone. The
//! debit was made between `asked` and `lo`, the lease was looked at again between `lo` and `hi`.
//!
//! ```json
//! {"k":"d","asked":…,"lo":…,"hi":…,"shard":7,"epoch":3,"session":"…","id":"…","tenant":"acme","cost":24,"admitted":true}
//! {"k":"e","at":…,"shard":7,"epoch":3,"session":"…","id":"…","tenant":"acme","how":"now","refunded":3,"overage":0}
//! ```

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::path::Path;

use serde_json::json;

use super::tenants::{Audit, Instants, Tenure};
use crate::clock;
use crate::limit::{Decision, Moment, Request, ReservationId, Resolved, Verdict};

/// An audit that is a file.
pub struct AuditFile(File);

impl AuditFile {
    /// Appends to the file at `path`, which is made if it is not there.
    ///
    /// # Errors
    /// It cannot be opened.
    pub fn at(path: &Path) -> io::Result<Self> {
        OpenOptions::new().create(true).append(true).open(path).map(Self)
    }

    fn append(&self, line: &serde_json::Value) {
        // Whoever reads it sees the gap in the ids; there is nobody here to tell.
        let _ = (&self.0).write_all(format!("{line}\n").as_bytes());
    }
}

impl Audit for AuditFile {
    fn now(&self) -> u64 {
        clock::audit_now()
    }

    fn decided(&self, by: Tenure, at: Instants, request: &Request<'_>, decision: &Decision) {
        self.append(&json!({
            "k": "d", "asked": at.asked, "lo": at.debited, "hi": self.now(),
            "shard": by.shard.number(), "epoch": by.epoch.0, "session": by.session.to_string(),
            "id": request.id.to_string(), "tenant": &**request.tenant, "cost": request.need.total,
            "admitted": decision.verdict == Verdict::Admitted,
        }));
    }

    fn ended(&self, by: Tenure, _at: Moment, id: ReservationId, tenant: &str, resolved: &Resolved) {
        let (how, refunded, overage) = match *resolved {
            Resolved::Now { refunded, overage } => ("now", refunded, overage),
            Resolved::Late { refunded, overage } => ("late", refunded, overage),
            Resolved::Already => ("already", 0, 0),
            Resolved::Unknown => ("unknown", 0, 0),
        };
        self.append(&json!({
            "k": "e", "at": self.now(),
            "shard": by.shard.number(), "epoch": by.epoch.0, "session": by.session.to_string(),
            "id": id.to_string(), "tenant": tenant, "how": how, "refunded": refunded, "overage": overage,
        }));
    }
}
