//! Budgets, for operators: where each stands, and the two things that only a person can know: how much was used before, and that what
//! a dead owner held is not coming back.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::Response;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{Admin, json_page, problem};
use crate::control::budget::{
    BudgetAnswer, BudgetCommand, BudgetKey, BudgetRefusal, Budgets, Part, UNITS_MOST, Unit,
};
use crate::control::period::{Cycle, PeriodId};
use crate::limit::Name;
use crate::node::agreement::Disagreement;
use crate::node::view::{budget_json, cycle_name, unit_name};

/// Whose budgets.
#[derive(Deserialize)]
pub(super) struct Whose {
    tenant: Option<String>,
}

/// Which budget.
#[derive(Deserialize)]
struct Which {
    tenant: String,
    project: Option<String>,
    key: Option<String>,
    /// `hour`, `day`, `week` or `month`.
    cycle: String,
    /// `tokens` or `micro_dollars`.
    unit: String,
}

/// How much of the current period is used.
#[derive(Deserialize)]
pub(super) struct Used {
    #[serde(flatten)]
    which: Which,
    used: u64,
}

/// What is to be given back.
#[derive(Deserialize)]
pub(super) struct Release {
    #[serde(flatten)]
    which: Which,
    /// When the period began, in seconds since 1970; the current one without it.
    period: Option<i64>,
}

/// `GET /v1/budgets?tenant=T`
pub(super) async fn list(State(admin): State<Arc<Admin>>, Query(whose): Query<Whose>) -> Response {
    let control = admin.agreement.control();
    let budgets = of_tenant(control.budgets(), whose.tenant.as_deref());
    json_page(&json!({ "budgets": budgets, "alerts_waiting": control.budgets().alerts().len() }))
}

/// `POST /v1/budgets/used`
pub(super) async fn set_used(State(admin): State<Arc<Admin>>, Json(wish): Json<Used>) -> Response {
    if wish.used > UNITS_MOST {
        return bad_request(&format!("`used` is not from 0 to {UNITS_MOST}"));
    }
    let budget = match wish.which.key() {
        Ok(budget) => budget,
        Err(why) => return bad_request(&why),
    };
    let command = BudgetCommand::SetUsed { budget: budget.clone(), used: wish.used };
    done(&admin, &budget, admin.agreement.budget(command).await)
}

/// `POST /v1/budgets/release`
pub(super) async fn release(State(admin): State<Arc<Admin>>, Json(wish): Json<Release>) -> Response {
    let budget = match wish.which.key() {
        Ok(budget) => budget,
        Err(why) => return bad_request(&why),
    };
    let control = admin.agreement.control();
    let Some(view) = control.budgets().view(&budget, wish.period.map(PeriodId)) else {
        return problem(
            StatusCode::NOT_FOUND,
            "not_found",
            "There is no such budget, or no such period of it.",
        );
    };
    let period = view.period.id;
    for (session, _) in control.budgets().written_off(&budget, period) {
        let command = BudgetCommand::Release { budget: budget.clone(), period, session };
        match admin.agreement.budget(command).await {
            // Somebody else was faster.
            Ok(_) | Err(Disagreement::Refused(_)) => {}
            Err(problem) => return super::policy::disagreement(&problem),
        }
    }
    let page = json!({ "released": view.written_off, "budget": one(&admin, &budget) });
    json_page(&page)
}

fn done(admin: &Admin, budget: &BudgetKey, answer: Result<BudgetAnswer, Disagreement>) -> Response {
    match answer {
        Ok(_) => json_page(&json!({ "budget": one(admin, budget) })),
        Err(Disagreement::Refused(why)) if why == BudgetRefusal::NoSuchBudget.to_string() => {
            problem(StatusCode::NOT_FOUND, "not_found", &why)
        }
        Err(problem) => super::policy::disagreement(&problem),
    }
}

fn one(admin: &Admin, budget: &BudgetKey) -> Option<Value> {
    let view = admin.agreement.control().budgets().view(budget, None)?;
    Some(budget_json(budget, Some(&view)))
}

/// The budgets of a tenant, or of all, each with its current period.
pub(super) fn of_tenant(budgets: &Budgets, tenant: Option<&str>) -> Vec<Value> {
    let wanted = budgets.current().filter(|(key, _)| tenant.is_none_or(|tenant| *key.tenant == *tenant));
    wanted.map(|(key, _)| budget_json(key, budgets.view(key, None).as_ref())).collect()
}

impl Which {
    fn key(&self) -> Result<BudgetKey, String> {
        let cycles = [Cycle::Hour, Cycle::Day, Cycle::Week, Cycle::Month];
        let cycle = cycles.into_iter().find(|cycle| cycle_name(*cycle) == self.cycle);
        let cycle = cycle.ok_or_else(|| format!("`{}` is no cycle: hour, day, week or month", self.cycle))?;
        let unit = [Unit::Tokens, Unit::MicroDollars].into_iter().find(|unit| unit_name(*unit) == self.unit);
        let unit = unit.ok_or_else(|| format!("`{}` is no unit: tokens or micro_dollars", self.unit))?;
        let part = match (&self.project, &self.key) {
            (None, None) => Part::Tenant,
            (Some(project), None) => Part::Project(Name::from(project.as_str())),
            (None, Some(label)) => Part::Key(Name::from(label.as_str())),
            (Some(_), Some(_)) => return Err("a budget is of a project or of a key, not of both".to_owned()),
        };
        Ok(BudgetKey { tenant: Name::from(self.tenant.as_str()), part, cycle, unit })
    }
}

fn bad_request(why: &str) -> Response {
    problem(StatusCode::BAD_REQUEST, "bad_request", why)
}
