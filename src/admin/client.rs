//! How operators' commands ask a node: one request each, with the admin token.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, StatusCode, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use serde_json::Value;

use super::AdminToken;

/// The largest answer that is read, in bytes.
const MAX_ANSWER: usize = 64 * 1024 * 1024;

/// Where and with what right to ask. The same flags on every operator's command.
#[derive(Clone, Debug, clap::Args)]
pub struct Operator {
    /// The admin address of a node
    #[arg(
        long,
        env = "TOLLGATE_ADMIN_URL",
        value_name = "URL",
        default_value = "http://127.0.0.1:8081",
        global = true
    )]
    pub admin: String,
    /// A file with the admin token; TOLLGATE_ADMIN_TOKEN beats it [default: tollgate-data/admin.token]
    #[arg(long, env = "TOLLGATE_TOKEN_FILE", value_name = "FILE", global = true)]
    pub token_file: Option<PathBuf>,
    /// A file with the certificates, in PEM, that an https admin address is signed by [default: the web's authorities]
    #[arg(long, env = "TOLLGATE_CA_FILE", value_name = "FILE", global = true)]
    pub ca_file: Option<PathBuf>,
    /// Print the answer as JSON
    #[arg(long, global = true)]
    pub json: bool,
}

/// Why there is no answer that helps.
#[derive(Debug)]
pub enum Failure {
    /// The answer is no, or the input is bad.
    Refused(String),
    /// Nobody answers.
    Unreachable(String),
}

impl Failure {
    /// Says it, as `tollgate COMMAND: …`, and gives the exit code: 1 or 3.
    #[must_use]
    pub fn report(&self, command: &str) -> ExitCode {
        let (words, code) = match self {
            Self::Refused(words) => (words, 1),
            Self::Unreachable(words) => (words, 3),
        };
        eprintln!("tollgate {command}: {words}");
        ExitCode::from(code)
    }
}

impl Operator {
    /// Sends one request and waits for its answer, at most `within`.
    ///
    /// # Errors
    /// [`Failure`]: the node cannot be reached, or says no.
    pub fn ask(
        &self,
        method: &Method,
        path: &str,
        body: Option<&Value>,
        within: Duration,
    ) -> Result<Value, Failure> {
        let body = body.map(Value::to_string).unwrap_or_default();
        self.send(method, path, ("application/json", body), within)
    }

    /// [`Operator::ask`] with a body of this content type.
    ///
    /// # Errors
    /// As [`Operator::ask`].
    pub fn send(
        &self,
        method: &Method,
        path: &str,
        (content_type, body): (&'static str, String),
        within: Duration,
    ) -> Result<Value, Failure> {
        let refused = |problem: &dyn std::fmt::Display| Failure::Refused(problem.to_string());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|problem| refused(&problem))?;
        let token = self.token()?;
        let url = format!("{}{path}", self.admin.trim_end_matches('/'));
        let request = Request::builder()
            .method(method)
            .uri(&url)
            .header(header::AUTHORIZATION, format!("Bearer {}", token.expose()))
            .header(header::CONTENT_TYPE, content_type)
            .body(Full::new(Bytes::from(body)))
            .map_err(|problem| {
                Failure::Refused(format!("{url:?} is no address to ask (--admin): {problem}"))
            })?;
        let connector = self.connector()?;
        runtime.block_on(async {
            let unreachable = |problem: &dyn std::fmt::Display| {
                Failure::Unreachable(format!("{url} cannot be reached (--admin): {problem}"))
            };
            let client: Client<_, Full<Bytes>> = Client::builder(TokioExecutor::new()).build(connector);
            let asked = tokio::time::timeout(within, client.request(request)).await;
            let late = format!("no answer within {} s", within.as_secs());
            let answer = asked.map_err(|_| unreachable(&late))?.map_err(|problem| unreachable(&problem))?;
            let status = answer.status();
            let collected = Limited::new(answer.into_body(), MAX_ANSWER).collect().await;
            let text = collected.map_err(|problem| unreachable(&problem))?.to_bytes();
            let page: Value = serde_json::from_slice(&text).unwrap_or(Value::Null);
            if status.is_success() {
                return Ok(page);
            }
            let said = page.pointer("/error/message").and_then(Value::as_str);
            let said = said.map_or_else(|| format!("{url} answers {status}"), str::to_owned);
            let hint =
                if status == StatusCode::UNAUTHORIZED { " Or name its file with --token-file." } else { "" };
            Err(Failure::Refused(format!("{said}{hint}")))
        })
    }

    fn connector(&self) -> Result<HttpsConnector<HttpConnector>, Failure> {
        let builder = match &self.ca_file {
            None => HttpsConnectorBuilder::new().with_webpki_roots(),
            Some(file) => {
                let problem = |problem: &dyn std::fmt::Display| {
                    Failure::Refused(format!("{}: {problem} (--ca-file)", file.display()))
                };
                let mut roots = rustls::RootCertStore::empty();
                let certificates = CertificateDer::pem_file_iter(file).map_err(|error| problem(&error))?;
                for certificate in certificates {
                    let added = certificate.map(|certificate| roots.add(certificate));
                    added.map_err(|error| problem(&error))?.map_err(|error| problem(&error))?;
                }
                if roots.is_empty() {
                    return Err(problem(&"there is no certificate in it"));
                }
                let provider = Arc::new(rustls::crypto::ring::default_provider());
                let config = rustls::ClientConfig::builder_with_provider(provider)
                    .with_safe_default_protocol_versions()
                    .map_err(|error| problem(&error))?
                    .with_root_certificates(roots)
                    .with_no_client_auth();
                HttpsConnectorBuilder::new().with_tls_config(config)
            }
        };
        Ok(builder.https_or_http().enable_http1().build())
    }

    fn token(&self) -> Result<AdminToken, Failure> {
        if let Some(token) =
            std::env::var("TOLLGATE_ADMIN_TOKEN").ok().and_then(|token| AdminToken::given(&token))
        {
            return Ok(token);
        }
        let file = self.token_file.clone().unwrap_or_else(|| PathBuf::from("tollgate-data/admin.token"));
        AdminToken::of_file(&file).map_err(|problem| {
            Failure::Refused(format!(
                "no admin token: set TOLLGATE_ADMIN_TOKEN, or name the node's DIR/admin.token with --token-file ({problem})"
            ))
        })
    }
}
