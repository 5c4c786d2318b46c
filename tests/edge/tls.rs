//! Row 24, and TLS: both versions by ALPN, a certificate that is replaced while connections are open, a bad one that is not used.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use rustix::process::Signal;
use rustls::pki_types::{CertificateDer, ServerName};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tollgate::proxy::TlsFiles;

use crate::raw::{LIMITS, SHORT, good, head, impatient, key, send_over, until_closed};
use crate::support::process::temporary_directory;
use crate::support::{Inside, Node, Policy, Process, eventually};

/// Puts a new pair in place, each file by a rename, and returns its certificate.
fn replace(files: &TlsFiles) -> CertificateDer<'static> {
    let made = rcgen::generate_simple_self_signed(["gateway".to_owned(), "127.0.0.1".to_owned()]).unwrap();
    for (path, text) in [(&files.key, made.signing_key.serialize_pem()), (&files.cert, made.cert.pem())] {
        let next = path.with_extension("next");
        fs::write(&next, text).unwrap();
        fs::rename(&next, path).unwrap();
    }
    made.cert.der().clone()
}

fn files(folder: &Path) -> TlsFiles {
    TlsFiles { cert: folder.join("cert.pem"), key: folder.join("key.pem") }
}

async fn inside(files: &TlsFiles) -> Inside {
    let files = files.clone();
    let set = |options: &mut tollgate::gateway::GatewayOptions| {
        impatient(options);
        options.server.tls = Some(files);
    };
    Inside::with(set, |policy| policy.tenant("northwind", &key(), LIMITS)).await
}

/// Connects as one who trusts this certificate alone.
async fn connect(
    address: impl tokio::net::ToSocketAddrs,
    trusted: &CertificateDer<'static>,
    protocol: &str,
) -> std::io::Result<TlsStream<TcpStream>> {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(trusted.clone()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![protocol.as_bytes().to_vec()];
    let stream = TcpStream::connect(address).await?;
    TlsConnector::from(Arc::new(config)).connect(ServerName::try_from("gateway").unwrap(), stream).await
}

#[tokio::test]
async fn both_versions_are_spoken_over_tls() {
    let folder = temporary_directory();
    let files = files(folder.path());
    let trusted = replace(&files);
    let inside = inside(&files).await;
    let answers =
        send_over(connect(inside.gateway.callers(), &trusted, "http/1.1").await.unwrap(), good() + &good())
            .await;
    assert_eq!(answers.iter().map(|answer| answer.status).collect::<Vec<_>>(), [200, 200]);
    let refused = head("POST / HTTP/1.1", "Host: b\r\n");
    let answers =
        send_over(connect(inside.gateway.callers(), &trusted, "http/1.1").await.unwrap(), refused).await;
    assert_eq!(answers[0].status, 400, "as strict as without");

    let stream = connect(inside.gateway.callers(), &trusted, "h2").await.unwrap();
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
    let io = hyper_util::rt::TokioIo::new(stream);
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(hyper_util::rt::TokioExecutor::new(), io).await.unwrap();
    let connection = tokio::spawn(connection);
    let request = http::Request::get("https://gateway/v1/models")
        .header("authorization", key().bearer())
        .body(http_body_util::Empty::<bytes::Bytes>::new())
        .unwrap();
    assert_eq!(sender.send_request(request).await.unwrap().status(), 200);
    drop(sender);
    // Idle, so the node tells it to go.
    let _ended = connection.await.unwrap();
    inside.assert_at_rest().await;
}

#[tokio::test]
async fn row_24_a_handshake_that_is_not_finished() {
    let folder = temporary_directory();
    let files = files(folder.path());
    let trusted = replace(&files);
    let inside = inside(&files).await;
    for (bytes, why) in [(&b""[..], "silent"), (b"\x16\x03\x01\x02\x00\x01\x00", "handshake_late")] {
        let mut stream = TcpStream::connect(inside.gateway.callers()).await.unwrap();
        let began = tokio::time::Instant::now();
        stream.write_all(bytes).await.unwrap();
        until_closed(&mut stream).await;
        assert!(began.elapsed() >= SHORT, "{why}: not before its time");
        eventually("it is counted", async || {
            match inside.metric("tollgate_connections_cut_total", &[&format!("why=\"{why}\"")]) {
                1 => Ok(()),
                count => Err(format!("{count} for {why}")),
            }
        })
        .await;
    }
    // Plain HTTP where TLS is spoken.
    let mut stream = TcpStream::connect(inside.gateway.callers()).await.unwrap();
    stream.write_all(good().as_bytes()).await.unwrap();
    let came = until_closed(&mut stream).await;
    assert!(!came.starts_with(b"HTTP"), "{came:?}");
    // Shaken hands, and then nothing; or half a head.
    let mut silent = connect(inside.gateway.callers(), &trusted, "http/1.1").await.unwrap();
    assert!(until_closed(&mut silent).await.is_empty());
    let answers =
        send_over(connect(inside.gateway.callers(), &trusted, "http/1.1").await.unwrap(), "GET / HT").await;
    assert_eq!(answers[0].status, 408);
    inside.assert_at_rest().await;
}

#[tokio::test]
async fn a_new_certificate_is_used_and_a_bad_one_is_not() {
    let folder = temporary_directory();
    let files = files(folder.path());
    let first = replace(&files);
    let provider = Process::provider(&[]).await;
    let policy = Policy::at(&provider.url).tenant("northwind", &key(), LIMITS);
    let (cert, key_file) = (files.cert.display().to_string(), files.key.display().to_string());
    let mut node = Process::serve(&policy.yaml(), &["--tls-cert", &cert, "--tls-key", &key_file]).await;
    let address = node.callers.strip_prefix("https://").expect("it says that it speaks TLS").to_owned();
    let mut old = connect(&address, &first, "http/1.1").await.unwrap();
    // The watch has to have seen the first pair, or the second is the first that it sees.
    let second = replace(&files);
    eventually("the new certificate is in use", async || {
        connect(&address, &second, "http/1.1").await.map(drop).map_err(|error| error.to_string())
    })
    .await;
    assert!(connect(&address, &first, "http/1.1").await.is_err(), "the old one is not");
    old.write_all(good().as_bytes()).await.unwrap();
    let mut answer = [0; 12];
    old.read_exact(&mut answer).await.unwrap();
    assert_eq!(&answer, b"HTTP/1.1 200", "connections stay");

    fs::write(&files.cert, "torn").unwrap();
    node.until_metric("tollgate_tls_reloads_total", &["result=\"refused\""], 1).await;
    assert!(node.process.log().contains("the old one stays"), "{}", node.process.log());
    assert!(connect(&address, &second, "http/1.1").await.is_ok());
    let third = replace(&files);
    eventually("a good one after it is used", async || {
        connect(&address, &third, "http/1.1").await.map(drop).map_err(|error| error.to_string())
    })
    .await;
    // Nothing has changed, but somebody asks.
    let applied =
        async |node: &Node| node.metric("tollgate_tls_reloads_total", &["result=\"applied\""]).await;
    let before = applied(&node).await;
    node.process.signal(Signal::HUP);
    eventually("the pair is read again", async || match applied(&node).await {
        count if count > before => Ok(()),
        count => Err(format!("{count} times")),
    })
    .await;
    drop(provider);
}

#[tokio::test]
async fn operators_connect_by_tls_too() {
    let folder = temporary_directory();
    let files = files(folder.path());
    let first = replace(&files);
    let set = |options: &mut tollgate::gateway::GatewayOptions| options.admin_tls = Some(files.clone());
    let inside = Inside::with(set, |policy| policy.tenant("northwind", &key(), LIMITS)).await;
    let address = inside.gateway.operators();
    let plain = b"GET /livez HTTP/1.1\r\nHost: gateway\r\nConnection: close\r\n\r\n";
    // Whoever does not finish its handshake keeps nobody out.
    let _silent = TcpStream::connect(address).await.unwrap();
    let answers = send_over(connect(address, &first, "http/1.1").await.unwrap(), plain).await;
    assert_eq!(answers[0].status, 200);
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(plain).await.unwrap();
    assert!(!until_closed(&mut stream).await.starts_with(b"HTTP"), "plain HTTP is not spoken");

    let status = |more: &[&str]| {
        let mut command = crate::support::process::tollgate("cluster");
        command.args(["status", "--admin", &format!("https://{address}")]).args(more);
        command.env("TOLLGATE_ADMIN_TOKEN", crate::support::inside::OPERATOR);
        // The node lives in this process, so its thread must not wait for the command.
        tokio::task::spawn_blocking(move || {
            let ended = command.output().unwrap();
            (ended.status.code(), String::from_utf8_lossy(&ended.stderr).into_owned())
        })
    };
    let ca = files.cert.display().to_string();
    assert_eq!(status(&["--ca-file", &ca]).await.unwrap().0, Some(0));
    let (code, said) = status(&[]).await.unwrap();
    assert_eq!(code, Some(3), "nobody on the web vouches for it: {said}");

    let second = replace(&files);
    eventually("the new certificate is in use", async || {
        connect(address, &second, "http/1.1").await.map(drop).map_err(|error| error.to_string())
    })
    .await;
}

#[tokio::test]
async fn a_node_does_not_start_with_a_certificate_that_cannot_be_used() {
    let folder = temporary_directory();
    let files = files(folder.path());
    replace(&files);
    fs::write(&files.key, "nothing").unwrap();
    let policy = folder.path().join("policy.yaml");
    fs::write(&policy, Policy::at("http://127.0.0.1:9").tenant("northwind", &key(), LIMITS).yaml()).unwrap();
    for arguments in [vec!["--tls-cert", "cert.pem", "--tls-key", "key.pem"], vec!["--tls-cert", "cert.pem"]]
    {
        let mut command = crate::support::process::tollgate("serve");
        command.current_dir(folder.path()).args(["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]);
        command.args(["--policy", "policy.yaml"]).args(&arguments);
        let ended = command.output().unwrap();
        let said = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert!(!ended.status.success() && (said.contains("key.pem") || said.contains("together")), "{said}");
    }
}
