//! A new key: made from the operating system's randomness, shown to whoever asked, and kept nowhere.

use rand::TryRng as _;
use rand::rngs::SysRng;

use crate::policy::KeyHash;

/// A new key, `tg-` and 256 random bits of the operating system's in hexadecimal, and its hash.
///
/// # Errors
/// The operating system gives no random numbers.
pub fn random_key() -> Result<(String, KeyHash), String> {
    let mut bits = [0_u8; 32];
    SysRng
        .try_fill_bytes(&mut bits)
        .map_err(|error| format!("the operating system gives no random numbers: {error}"))?;
    let key = format!("tg-{}", hex::encode(bits));
    let hash = KeyHash::of(key.as_bytes());
    Ok((key, hash))
}
