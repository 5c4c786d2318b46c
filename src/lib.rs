//! Tollgate: a clustered LLM gateway that enforces every tenant's limits as one machine would.

pub mod admin;
pub mod alert;
pub mod auth;
pub mod cli;
pub mod clock;
mod codec;
pub mod config;
pub mod control;
pub mod demo;
pub mod estimate;
pub mod gateway;
pub mod issuers;
pub mod ledger;
pub mod limit;
pub mod meter;
pub mod node;
pub mod policy;
pub mod proxy;
pub mod reload;
pub mod route;
pub mod secrets;
pub mod simulated;
pub mod telemetry;
pub mod upstream;
