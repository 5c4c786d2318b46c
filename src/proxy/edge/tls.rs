//! TLS for callers, and for operators: a certificate and its key, followed as the policy is, and read again on SIGHUP. A new pair is
//! used whole by the connections that come after it; one that cannot be used is refused with the reason, and the old one stays.

use std::fmt;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Notify;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use crate::reload;

/// The most that is read of either file. Chains of a few certificates are below 20 KiB.
const MOST: u64 = 1024 * 1024;
/// What a watch missed is found after this long.
const POLL: Duration = Duration::from_secs(2);
/// Two files are replaced one after the other; a pair that is half new is not worth a complaint.
const SETTLE: Duration = Duration::from_millis(100);

/// Where a certificate and its key lie, in PEM.
#[derive(Clone, Debug)]
pub struct TlsFiles {
    /// The certificate, and those that it is signed by, in order.
    pub cert: PathBuf,
    /// Its private key.
    pub key: PathBuf,
}

/// The pair in use.
pub struct Tls {
    files: TlsFiles,
    current: ArcSwap<ServerConfig>,
}

impl fmt::Debug for Tls {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.files.fmt(out)
    }
}

/// What was found of a pair: two files, as they were.
type Found = (Vec<u8>, Vec<u8>);

impl Tls {
    /// Reads a pair for the first time.
    ///
    /// # Errors
    /// A file that cannot be read or holds no PEM of its kind, or a key that is not the certificate's: which, and why.
    pub fn load(files: TlsFiles) -> Result<Arc<Self>, String> {
        let current = ArcSwap::from_pointee(configured(&files, &read(&files)?)?);
        Ok(Arc::new(Self { files, current }))
    }

    /// What greets the next connection.
    #[must_use]
    pub fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(self.current.load_full())
    }

    /// Follows the two files until `stopping`; `tell` is given the result of each reload.
    pub async fn follow(self: Arc<Self>, stopping: CancellationToken, tell: impl Fn(&'static str)) {
        let changed = Arc::new(Notify::new());
        let _watchers = [&self.files.cert, &self.files.key].map(|file| reload::watch(file, changed.clone()));
        let mut hangup = signal(SignalKind::hangup()).ok();
        let mut seen: Option<Found> = None;
        loop {
            let asked = tokio::select! {
                () = stopping.cancelled() => return,
                () = changed.notified() => { tokio::time::sleep(SETTLE).await; false }
                () = tokio::time::sleep(POLL) => false,
                Some(()) = reload::next_hangup(&mut hangup) => true,
            };
            let (tls, before) = (self.clone(), seen.take());
            let looking = tokio::task::spawn_blocking(move || tls.look(before, asked));
            let Ok((found, result)) = looking.await else {
                return;
            };
            seen = found;
            result.into_iter().for_each(&tell);
        }
    }

    /// Looks at the files and uses them if they differ from `seen`, or if somebody has asked.
    fn look(&self, seen: Option<Found>, asked: bool) -> (Option<Found>, Option<&'static str>) {
        let found = match read(&self.files) {
            Ok(found) => found,
            Err(problem) if asked => {
                tracing::error!("the certificate cannot be read and the old one stays: {problem}");
                return (seen, Some("refused"));
            }
            // Between two steps of a replacement a file may be missing.
            Err(_) => return (seen, None),
        };
        if !asked && seen.as_ref() == Some(&found) {
            return (seen, None);
        }
        let result = match configured(&self.files, &found) {
            Ok(config) => {
                self.current.store(Arc::new(config));
                if seen.is_some() || asked {
                    tracing::info!(cert = %self.files.cert.display(), "a new certificate is in use");
                }
                "applied"
            }
            Err(problem) => {
                tracing::error!("the new certificate is refused and the old one stays: {problem}");
                "refused"
            }
        };
        // The first look is at what was loaded a moment ago.
        let is_news = seen.is_some() || asked || result == "refused";
        (Some(found), is_news.then_some(result))
    }
}

fn read(files: &TlsFiles) -> Result<Found, String> {
    Ok((read_file(&files.cert)?, read_file(&files.key)?))
}

fn read_file(path: &Path) -> Result<Vec<u8>, String> {
    let told = |error: std::io::Error| format!("{}: {error}", path.display());
    let mut bytes = Vec::new();
    std::fs::File::open(path).map_err(told)?.take(MOST).read_to_end(&mut bytes).map_err(told)?;
    Ok(bytes)
}

fn configured(files: &TlsFiles, (cert, key): &Found) -> Result<ServerConfig, String> {
    let of = |path: &Path, problem: &dyn fmt::Display| format!("{}: {problem}", path.display());
    let chain = CertificateDer::pem_slice_iter(cert).collect::<Result<Vec<_>, _>>();
    let chain = chain.map_err(|error| of(&files.cert, &error))?;
    if chain.is_empty() {
        return Err(of(&files.cert, &"there is no certificate in it"));
    }
    let key = PrivateKeyDer::from_pem_slice(key).map_err(|error| of(&files.key, &error))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .map_err(|error| format!("{} with {}: {error}", files.cert.display(), files.key.display()))?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(folder: &Path) -> TlsFiles {
        let files = TlsFiles { cert: folder.join("cert.pem"), key: folder.join("key.pem") };
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        std::fs::write(&files.cert, made.cert.pem()).unwrap();
        std::fs::write(&files.key, made.signing_key.serialize_pem()).unwrap();
        files
    }

    #[test]
    fn a_pair_that_cannot_be_used_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let files = pair(folder.path());
        assert!(Tls::load(files.clone()).is_ok());
        let other = tempfile::tempdir().unwrap();
        let mixed = TlsFiles { cert: files.cert.clone(), key: pair(other.path()).key };
        assert!(Tls::load(mixed).is_err_and(|why| why.contains("key.pem")));
        std::fs::write(&files.cert, "nothing").unwrap();
        assert!(Tls::load(files.clone()).is_err_and(|why| why.contains("no certificate")));
        std::fs::remove_file(&files.cert).unwrap();
        assert!(Tls::load(files).is_err_and(|why| why.contains("cert.pem")));
    }

    #[test]
    fn a_new_pair_is_used_and_a_bad_one_leaves_the_old() {
        let folder = tempfile::tempdir().unwrap();
        let files = pair(folder.path());
        let tls = Tls::load(files.clone()).unwrap();
        let (seen, told) = tls.look(None, false);
        assert_eq!(told, None);
        let first = tls.current.load_full();
        std::fs::write(&files.key, "torn").unwrap();
        let (seen, told) = tls.look(seen, false);
        assert_eq!(told, Some("refused"));
        let (seen, told) = tls.look(seen, false);
        assert_eq!(told, None, "told once");
        let (seen, told) = tls.look(seen, true);
        assert_eq!(told, Some("refused"), "but to whoever asks");
        assert!(Arc::ptr_eq(&tls.current.load_full(), &tls.current.load_full()));
        pair(folder.path());
        let before = tls.current.load_full();
        let (seen, told) = tls.look(seen, false);
        assert_eq!(told, Some("applied"));
        assert_eq!(tls.look(seen, true).1, Some("applied"), "asked for, and read again");
        assert!(
            !Arc::ptr_eq(&before, &tls.current.load_full()) && !Arc::ptr_eq(&first, &tls.current.load_full())
        );
    }
}
