//! route
pub mod dialect;
pub use dialect::Dialect;
