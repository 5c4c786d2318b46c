//! What a request costs beside its tenant's own limits, by one policy: compiled with it, never changed in place.
//!
//! A budget's period is that of the agreed state when the request is admitted, and its price that of the day ([`Known`]): both go along with
//! the reservation.

use std::collections::BTreeMap;
use std::sync::Arc;

use hashbrown::HashMap;
use jiff::civil::Date;

use crate::control::budget::{BudgetKey, BudgetTerms, BudgetView, Budgets, Part, Unit};
use crate::control::price;
use crate::control::terms;
use crate::limit::{Account, Denial, Lane, Left, Name, Request, Terms};
use crate::policy::{Policy, PriceList};

/// See the module.
#[derive(Debug, Default)]
pub struct Tariff {
    terms: BTreeMap<Name, Terms>,
    /// By model.
    pools: HashMap<Name, Name>,
    budget_terms: BTreeMap<BudgetKey, BudgetTerms>,
    /// By tenant.
    budgets: HashMap<Name, OfTenant>,
    book: Vec<PriceList>,
}

/// The budgets of a tenant, and of its parts.
#[derive(Debug, Default)]
struct OfTenant {
    whole: Vec<BudgetKey>,
    projects: BTreeMap<Name, Vec<BudgetKey>>,
    keys: BTreeMap<Name, Vec<BudgetKey>>,
}

/// Where a budget stands, for its caller to see. Amounts in its unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BudgetStanding {
    /// What a period may use.
    pub limit: u64,
    /// What nobody holds and nobody has used.
    pub remaining: u64,
    /// When the period ends, in seconds since 1970.
    pub resets: i64,
}

/// What this node knows of the agreed state and of the day.
#[derive(Clone, Debug, Default)]
pub struct Known {
    /// Where budgets stand, as far as the log is applied here.
    pub budgets: Arc<Budgets>,
    /// The day, UTC, by this node's wall clock.
    pub day: Date,
}

impl Tariff {
    /// What `policy` says.
    #[must_use]
    pub fn of(policy: &Policy) -> Self {
        let terms = terms::of_pools(policy);
        let pool_of = |model: &crate::policy::Model| {
            let (pool, terms) = terms.get_key_value(model.pool.as_str())?;
            terms.is_limited().then(|| (Name::from(model.name.as_str()), pool.clone()))
        };
        let pools = policy.models.values().filter_map(pool_of).collect();
        let budget_terms = terms::of_budgets(policy);
        let mut budgets: HashMap<Name, OfTenant> = HashMap::new();
        for key in budget_terms.keys() {
            let of = budgets.entry(key.tenant.clone()).or_default();
            let list = match &key.part {
                Part::Tenant => &mut of.whole,
                Part::Project(project) => of.projects.entry(project.clone()).or_default(),
                Part::Key(label) => of.keys.entry(label.clone()).or_default(),
            };
            list.push(key.clone());
        }
        Self { terms, pools, budget_terms, budgets, book: policy.price_book.clone() }
    }

    /// What holds of each pool.
    #[must_use]
    pub const fn terms(&self) -> &BTreeMap<Name, Terms> {
        &self.terms
    }

    /// The pool that serves a model, if it limits anything.
    #[must_use]
    pub fn pool_of(&self, model: &str) -> Option<&Name> {
        self.pools.get(model)
    }

    /// What a request takes from budgets, in each one's unit: those of its key, its project and its tenant.
    ///
    /// # Errors
    /// The calendar of one has not begun: a moment after its policy was agreed on.
    pub(super) fn budgets_of(
        &self,
        request: &Request<'_>,
        known: &Known,
    ) -> Result<Vec<(Account, u64)>, Denial> {
        let mut budgets = Vec::new();
        for budget in self.budgets_for(request.tenant, request.project, request.key) {
            let need = self.need(budget.unit, request, known.day);
            if need == 0 {
                continue;
            }
            let Some((Some(period), _)) = known.budgets.left(budget, request.lane) else {
                return Err(Denial::Granting(Box::new(Denial::Unavailable)));
            };
            budgets.push((Account { budget: budget.clone(), period: period.id, lane: request.lane }, need));
        }
        Ok(budgets)
    }

    /// The budgets of a key, its project and its tenant.
    fn budgets_for<'t>(
        &'t self,
        tenant: &str,
        project: Option<&'t str>,
        key: &'t str,
    ) -> impl Iterator<Item = &'t BudgetKey> {
        self.budgets.get(tenant).into_iter().flat_map(move |of| {
            let keys = of.keys.get(key).into_iter().flatten();
            let project = project.and_then(|project| of.projects.get(project)).into_iter().flatten();
            keys.chain(project).chain(&of.whole)
        })
    }

    /// Of a caller's budgets, where the one stands that has the smallest part left.
    pub(super) fn tightest(
        &self,
        known: &Known,
        tenant: &str,
        project: Option<&str>,
        key: &str,
    ) -> Option<BudgetStanding> {
        let standing = |budget: &BudgetKey| {
            let limit = self.budget_terms.get(budget)?.limit;
            let (period, remaining) = known.budgets.left(budget, Lane::Regular)?;
            Some(BudgetStanding { limit, remaining, resets: period?.end })
        };
        let all = self.budgets_for(tenant, project, key).filter_map(standing);
        // The part that is left, in millionths.
        all.min_by_key(|at| u128::from(at.remaining) * 1_000_000 / u128::from(at.limit.max(1)))
    }

    /// A caller's budgets, as the log has them.
    pub(super) fn views(
        &self,
        known: &Known,
        tenant: &str,
        project: Option<&str>,
        key: &str,
    ) -> Vec<(BudgetKey, Option<BudgetView>)> {
        let budgets = self.budgets_for(tenant, project, key);
        budgets.map(|budget| (budget.clone(), known.budgets.view(budget, None))).collect()
    }

    fn need(&self, unit: Unit, request: &Request<'_>, day: Date) -> u64 {
        match unit {
            Unit::Tokens => request.need.total,
            // What the price book does not name costs no dollars; `check` says so.
            Unit::MicroDollars => price::in_force(&self.book, request.model, day)
                .map_or(0, |tariff| price::estimate(&tariff.price, request.need)),
        }
    }

    /// The budgets whose terms are other ones in `next`.
    pub(super) fn changed<'t>(&'t self, next: &'t Self) -> impl Iterator<Item = &'t BudgetKey> {
        self.budget_terms
            .iter()
            .filter(|(key, terms)| next.budget_terms.get(*key) != Some(*terms))
            .map(|(key, _)| key)
    }
}

impl Known {
    /// Where an account stands, as this node last heard: nothing is left in a period that is over.
    pub(super) fn left(&self, account: &Account) -> Left {
        let units = match self.budgets.left(&account.budget, account.lane) {
            Some((Some(period), left)) if period.id == account.period => left,
            _ => 0,
        };
        Left { units, of: self.budgets.cap(&account.budget, account.lane) }
    }

    /// Whether little is left of an account: what is freed of it is waited for.
    pub(crate) fn is_last(&self, account: &Account) -> bool {
        let left = self.left(account);
        left.units < left.last()
    }

    /// Whether the account's period is the current one of its budget.
    pub(super) fn is_current(&self, account: &Account) -> bool {
        let current = self.budgets.left(&account.budget, account.lane);
        current.is_none_or(|(period, _)| period.is_none_or(|period| period.id == account.period))
    }

    /// What a request is told that needs so much of an account and does not get it.
    pub(super) fn lacks(&self, (account, need): &(Account, u64)) -> Denial {
        let left = self.budgets.left(&account.budget, account.lane);
        let resets = left.and_then(|(period, _)| period).map(|period| period.end);
        let remaining = self.left(account).units;
        Denial::Budget { budget: account.budget.clone(), need: *need, remaining, resets }
    }
}
