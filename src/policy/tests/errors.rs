//! Where a bad document is told to be bad.
