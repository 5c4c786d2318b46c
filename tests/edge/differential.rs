//! Row 18: the same bytes to nginx and to a node. Whoever stands in front of a node, or behind another's proxy, must not read a request
//! that the other did not: so a node refuses what nginx refuses, and where it refuses more, that is written here.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Stdio};

use tokio::net::UnixStream;

use crate::raw::{Answer, answers, key, northwind, send, until_closed};
use crate::support::inside::chat;
use crate::support::process::temporary_directory;
use crate::support::{Process, eventually};

/// What is expected of a node beside nginx.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Beside {
    /// Both accept, or both refuse.
    Same,
    /// nginx accepts and a node refuses: why.
    Stricter(&'static str),
}
use Beside::{Same, Stricter};

/// What comes before the empty line of a head: `HOST` and `KEY` are filled in, and LENGTH is that of the body.
const CORPUS: &[(&str, &str, Beside)] = &[
    // What everybody sends.
    ("POST / HTTP/1.1\r\nHOST\r\nKEY\r\nLENGTH\r\n\r\n", "BODY", Same),
    ("POST / HTTP/1.0\r\nKEY\r\nLENGTH\r\n\r\n", "BODY", Same),
    ("POST / HTTP/1.1\r\nHOST\r\nKEY\r\nTransfer-Encoding: chunked\r\n\r\n", "CHUNKS", Same),
    ("POST / HTTP/1.1\r\nHOST\r\nKEY\r\ntransfer-encoding: Chunked\r\n\r\n", "CHUNKS", Same),
    ("POST / HTTP/1.1\r\nHOST\r\nKEY\r\nContent-Length:\t \tLEN \t\r\n\r\n", "BODY", Same),
    ("POST http://gateway/ HTTP/1.1\r\nHOST\r\nKEY\r\nLENGTH\r\n\r\n", "BODY", Same),
    ("\r\nPOST / HTTP/1.1\r\nHOST\r\nKEY\r\nLENGTH\r\n\r\n", "BODY", Same),
    ("POST / HTTP/1.1\r\nHOST\r\nKEY\r\nLENGTH\r\nX: caf\u{e9}\r\n\r\n", "BODY", Same),
    ("POST / HTTP/1.1\r\nHOST\r\nKEY\r\nLENGTH\r\nX:\r\n\r\n", "BODY", Same),
    ("POST /?a=[1]&b=%20 HTTP/1.1\r\nHOST\r\nKEY\r\nLENGTH\r\n\r\n", "BODY", Same),
    // How long is it?
    ("POST / HTTP/1.1\r\nHOST\r\nKEY\r\nLENGTH\r\nTransfer-Encoding: chunked\r\n\r\n", "CHUNKS", Same),
    ("POST / HTTP/1.1\r\nHOST\r\nKEY\r\nTransfer-Encoding: chunked\r\nLENGTH\r\n\r\n", "CHUNKS", Same),
    ("POST / HTTP/1.1\r\nHOST\r\nKEY\r\nLENGTH\r\nLENGTH\r\n\r\n", "BODY", Same),
    ("POST / HTTP/1.1\r\nHOST\r\nKEY\r\nLENGTH\r\nContent-Length: 0\r\n\r\n", "BODY", Same),
    ("POST / HTTP/1.1\r\nHOST\r\nKEY\r\nContent-Length: LEN, LEN\r\n\r\n", "BODY", Same),
    ("POST / HTTP/1.1\r\nHOST\r\nKEY\r\nContent-Length: +LEN\r\n\r\n", "BODY", Same),
    ("POST / HTTP/1.1\r\nHOST\r\nKEY\r\nContent-Length: -1\r\n\r\n", "BODY", Same),
    ("POST / HTTP/1.1\r\nHOST\r\nKEY\r\nContent-Length: 0x10\r\n\r\n", "BODY", Same),
    ("POST / HTTP/1.1\r\nHOST\r\nKEY\r\nContent-Length: 99999999999999999999\r\n\r\n", "BODY", Same),
    ("POST / HTTP/1.1\r\nHOST\r\nKEY\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", "CHUNKS", Same),
    ("POST / HTTP/1.1\r\nHOST\r\nKEY\r\nTransfer-Encoding: chunked, gzip\r\n\r\n", "CHUNKS", Same),
    ("POST / HTTP/1.1\r\nHOST\r\nKEY\r\nTransfer-Encoding: xchunked\r\n\r\n", "CHUNKS", Same),
    ("POST / HTTP/1.1\r\nHOST\r\nKEY\r\nTransfer-Encoding: identity\r\nLENGTH\r\n\r\n", "BODY", Same),
    (
        "POST / HTTP/1.1\r\nHOST\r\nKEY\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n",
        "CHUNKS",
        Same,
    ),
    ("POST / HTTP/1.0\r\nKEY\r\nTransfer-Encoding: chunked\r\n\r\n", "CHUNKS", Same),
    ("POST / HTTP/1.1\r\nHOST\r\nKEY\r\nTransfer-Encoding : chunked\r\n\r\n", "CHUNKS", Same),
    ("POST / HTTP/1.1\r\nHOST\r\nKEY\r\nTransfer-Encoding: chunked\r\n\r\n", "0x1\r\n{\r\n0\r\n\r\n", Same),
    (
        "POST / HTTP/1.1\r\nHOST\r\nKEY\r\nTransfer-Encoding: chunked\r\n\r\n",
        "1;ext=\"a\"\r\n{\r\nREST",
        Same,
    ),
    (
        "POST / HTTP/1.1\r\nHOST\r\nKEY\r\nTransfer-Encoding: chunked\r\n\r\n",
        "CHUNK0\r\nX: trailer\r\n\r\n",
        Stricter("nobody reads trailers"),
    ),
    (
        "POST / HTTP/1.1\r\nHOST\r\nKEY\r\nTransfer-Encoding: chunked\r\n\r\n",
        "1\n{\nREST",
        Stricter("lines end in CRLF"),
    ),
    (
        "POST / HTTP/1.1\r\nHOST\r\nKEY\r\nTransfer-Encoding: chunked\r\n\r\n",
        "1 \r\n{\r\nREST",
        Stricter("a size is followed by its line's end or an extension"),
    ),
    // Where does a line end?
    ("POST / HTTP/1.1\nHOST\nKEY\nLENGTH\n\n", "BODY", Stricter("lines end in CRLF")),
    ("POST / HTTP/1.1\r\nHOST\nKEY\r\nLENGTH\r\n\r\n", "BODY", Stricter("lines end in CRLF")),
    ("POST / HTTP/1.1\r\nHOST\r\nKEY\r\nLENGTH\r\nX: a\r\n b\r\n\r\n", "BODY", Same),
    ("POST / HTTP/1.1\r\nHOST\r\nKEY\r\nLENGTH\r\nX: a\rb\r\n\r\n", "BODY", Same),
    ("POST / HTTP/1.1\r\nHOST\r\nKEY\r\nLENGTH\r\nX: a\0b\r\n\r\n", "BODY", Same),
    (
        "POST / HTTP/1.1\r\nHOST\r\nKEY\r\nLENGTH\r\nX: a\u{1b}b\r\n\r\n",
        "BODY",
        Stricter("control characters are no part of a value"),
    ),
    ("POST / HTTP/1.1\r\nHOST\r\nKEY\r\nLENGTH\r\nX (y): a\r\n\r\n", "BODY", Same),
    (
        "POST / HTTP/1.1\r\nHOST\r\nKEY\r\nLENGTH\r\nX\r\n\r\n",
        "BODY",
        Stricter("a line has a colon; nginx ignores one without"),
    ),
    // For whom is it?
    ("POST / HTTP/1.1\r\nKEY\r\nLENGTH\r\n\r\n", "BODY", Same),
    ("POST / HTTP/1.1\r\nHOST\r\nHOST\r\nKEY\r\nLENGTH\r\n\r\n", "BODY", Same),
    ("POST / HTTP/1.1\r\nHost:\r\nKEY\r\nLENGTH\r\n\r\n", "BODY", Same),
    ("POST / HTTP/1.1\r\nHost: a/b\r\nKEY\r\nLENGTH\r\n\r\n", "BODY", Same),
    ("POST / HTTP/1.1\r\nHost: a,b\r\nKEY\r\nLENGTH\r\n\r\n", "BODY", Stricter("a Host is one host")),
    (
        "POST http://other/ HTTP/1.1\r\nHOST\r\nKEY\r\nLENGTH\r\n\r\n",
        "BODY",
        Stricter("a target and a Host name one host"),
    ),
    // What is it?
    ("CONNECT gateway:443 HTTP/1.1\r\nHOST\r\nKEY\r\n\r\n", "", Same),
    ("TRACE / HTTP/1.1\r\nHOST\r\nKEY\r\n\r\n", "", Same),
    ("POST / HTTP/1.2\r\nHOST\r\nKEY\r\nLENGTH\r\n\r\n", "BODY", Stricter("versions are 1.0 and 1.1")),
    ("POST / HTTP/3.0\r\nHOST\r\nKEY\r\nLENGTH\r\n\r\n", "BODY", Same),
    ("POST / HTTP/1.1 x\r\nHOST\r\nKEY\r\nLENGTH\r\n\r\n", "BODY", Same),
    (
        "POST  / HTTP/1.1\r\nHOST\r\nKEY\r\nLENGTH\r\n\r\n",
        "BODY",
        Stricter("one space parts method and target"),
    ),
    ("post / HTTP/1.1\r\nHOST\r\nKEY\r\nLENGTH\r\n\r\n", "BODY", Same),
    ("POST /\r\nHOST\r\n\r\n", "", Same),
    ("POST /%00 HTTP/1.1\r\nHOST\r\nKEY\r\nLENGTH\r\n\r\n", "BODY", Same),
    ("POST /%zz HTTP/1.1\r\nHOST\r\nKEY\r\nLENGTH\r\n\r\n", "BODY", Same),
    (
        "POST /\\ HTTP/1.1\r\nHOST\r\nKEY\r\nLENGTH\r\n\r\n",
        "BODY",
        Stricter("what RFC 3986 wants escaped is escaped"),
    ),
    ("POST /#a HTTP/1.1\r\nHOST\r\nKEY\r\nLENGTH\r\n\r\n", "BODY", Stricter("a target has no fragment")),
];

fn filled(head: &str, body: &str, path: &str) -> Vec<u8> {
    let json = chat(4).to_string();
    let (first, rest) = json.split_at(1);
    let rest = format!("{:x}\r\n{rest}\r\n0\r\n\r\n", rest.len());
    let chunk = format!("{:x}\r\n{json}\r\n0", json.len());
    let body = match body {
        "BODY" => json.clone(),
        "CHUNKS" => format!("1\r\n{first}\r\n{rest}"),
        other => other.replace("REST", &rest).replace("CHUNK0", &chunk),
    };
    let head = head.replacen("http://gateway/ ", &format!("http://gateway{path} "), 1);
    let head = head.replacen("http://other/ ", &format!("http://other{path} "), 1);
    let head = head.replacen(" / ", &format!(" {path} "), 1).replacen(" /?", &format!(" {path}?"), 1);
    let key = format!("Authorization: {}", key().bearer());
    let length = json.len().to_string();
    let head = head.replace("HOST", "Host: gateway").replace("KEY", &key);
    let head = head.replace("LENGTH", &format!("Content-Length: {length}")).replace("LEN", &length);
    // Bytes above ASCII as one byte each, as old clients send them.
    let head = head.chars().map(|letter| u8::try_from(u32::from(letter)).unwrap());
    head.chain(body.bytes()).collect()
}

/// Whether a request was let in: answered by what serves its path, whatever that says.
fn accepted(answers: &[Answer]) -> bool {
    answers.first().is_some_and(|answer| matches!(answer.status, 200 | 404))
}

/// nginx that answers everything, having read its body, on a socket in `folder`.
fn nginx(folder: &Path) -> Process {
    let place = folder.display();
    let config = format!(
        r#"
master_process off;
daemon off;
pid {place}/pid;
error_log {place}/error.log;
events {{ worker_connections 64; }}
http {{
    access_log off;
    keepalive_timeout 1s;
    client_body_temp_path {place}/body;
    proxy_temp_path {place}/proxy;
    fastcgi_temp_path {place}/fastcgi;
    uwsgi_temp_path {place}/uwsgi;
    scgi_temp_path {place}/scgi;
    server {{ listen unix:{place}/front; location / {{ proxy_pass http://unix:{place}/back; }} }}
    server {{ listen unix:{place}/back; location / {{ return 200; }} }}
}}
"#
    );
    fs::write(folder.join("nginx.conf"), config).unwrap();
    let mut command = Command::new("nginx");
    command
        .arg("-e")
        .arg(folder.join("error.log"))
        .arg("-p")
        .arg(folder)
        .arg("-c")
        .arg(folder.join("nginx.conf"));
    Process::start("nginx", command, temporary_directory())
}

async fn send_to_nginx(folder: &Path, bytes: &[u8]) -> Vec<Answer> {
    let stream = UnixStream::connect(folder.join("front")).await.unwrap();
    let (mut reading, mut writing) = stream.into_split();
    let sent = async {
        use tokio::io::AsyncWriteExt;
        let _closed = writing.write_all(bytes).await;
    };
    let (_, read) = tokio::join!(sent, until_closed(&mut reading));
    // HTTP/0.9, which is what it takes a line without a version for, is answered without a head.
    if read.starts_with(b"HTTP/") { answers(&read) } else { Vec::new() }
}

#[tokio::test]
async fn row_18_a_node_reads_what_nginx_reads_or_refuses_it() {
    if Command::new("nginx").arg("-v").stderr(Stdio::null()).status().is_err() {
        assert!(std::env::var_os("CI").is_none(), "nginx is not installed");
        eprintln!("SKIPPED: nginx is not installed: on Debian, `apt-get install nginx`");
        return;
    }
    let folder = temporary_directory();
    File::create(folder.path().join("error.log")).unwrap();
    let _nginx = nginx(folder.path());
    eventually("nginx listens", async || {
        UnixStream::connect(folder.path().join("front")).await.map(drop).map_err(|error| error.to_string())
    })
    .await;
    let inside = northwind().await;
    let mut wrong = Vec::new();
    let (mut same, mut stricter) = (0, 0);
    for (head, body, beside) in CORPUS {
        let theirs = send_to_nginx(folder.path(), &filled(head, body, "/")).await;
        let ours = send(inside.gateway.callers(), filled(head, body, "/v1/chat/completions")).await;
        let expected = match (accepted(&theirs), accepted(&ours)) {
            (theirs, ours) if theirs == ours => Some(*beside) == Some(Same),
            (true, false) => matches!(beside, Stricter(_)),
            _ => false,
        };
        if *beside == Same {
            same += 1
        } else {
            stricter += 1
        }
        // What both accept is one request to both.
        let one = !accepted(&ours) || !accepted(&theirs) || (ours.len(), theirs.len()) == (1, 1);
        if !expected || !one {
            let statuses =
                |answers: &[Answer]| answers.iter().map(|answer| answer.status).collect::<Vec<_>>();
            wrong.push(format!(
                "{beside:?}: nginx {:?}, ours {:?}: {head:?} {body:?}",
                statuses(&theirs),
                statuses(&ours)
            ));
        }
    }
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), CORPUS.len(), wrong.join("\n"));
    println!("{same} verdicts are nginx's, {stricter} are stricter");
    inside.assert_at_rest().await;
}
