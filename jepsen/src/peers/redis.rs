//! As much of Redis as a limiter in front of it needs: a server, a Sentinel, a connection that sends a command and reads its answer
//! (RESP 2), and the script.

use std::fs;
use std::io::{Error, ErrorKind, Result};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufStream};
use tokio::net::TcpStream;

use crate::history::Bucket;
use crate::network::{Host, Plane};
use crate::sys;

const SERVER: u16 = 6379;
const SENTINEL: u16 = 26379;

/// A token bucket as it is commonly written: one script, which Redis runs alone, by Redis' own clock. Levels are requests; a bucket that
/// is not there is full.
const SCRIPT: &str = "
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local burst, per_minute = tonumber(ARGV[1]), tonumber(ARGV[2])
local state = redis.call('HMGET', KEYS[1], 'level', 'at')
local level, at = tonumber(state[1]) or burst, tonumber(state[2]) or now
level = math.min(burst, level + math.max(0, now - at) * per_minute / 60000000)
local admitted = 0
if level >= 1 then
  admitted = 1
  level = level - 1
end
redis.call('HSET', KEYS[1], 'level', level, 'at', now)
redis.call('PEXPIRE', KEYS[1], math.ceil(burst * 60000 / per_minute) + 1000)
return admitted
";

/// The longest answer that is read.
const LONGEST: usize = 64 * 1024;

/// Starts the server of `host`, a replica of the first host's if it is not that one, and its Sentinel. Both die with this process.
///
/// # Errors
/// Redis is not installed, or the folder cannot be written.
pub fn start(host: Host, hosts: u8, folder: &Path) -> std::result::Result<[Child; 2], String> {
    let address = Plane::Peers.of(host);
    let first = Plane::Peers.of(1);
    let common = |port: u16| {
        let folder = folder.display();
        format!("bind {address}\nport {port}\nprotected-mode no\ndir {folder}\ndaemonize no\n")
    };
    let of = if host == 1 { String::new() } else { format!("replicaof {first} {SERVER}\n") };
    let quorum = hosts / 2 + 1;
    let server = format!("{}save \"\"\nappendonly no\nrepl-ping-replica-period 1\n{of}", common(SERVER));
    let sentinel = format!(
        "{}sentinel monitor main {first} {SERVER} {quorum}
sentinel down-after-milliseconds main 1500
sentinel failover-timeout main 6000
",
        common(SENTINEL)
    );
    let run = |name: &str, text: String, more: &[&str]| {
        let problem = |error: Error| format!("{}: {error}", folder.display());
        let file = folder.join(format!("{name}.conf"));
        // What Sentinel has changed stays: a host that comes back knows its place.
        if !file.exists() {
            fs::write(&file, text).map_err(problem)?;
        }
        let log = fs::OpenOptions::new().create(true).append(true).open(folder.join(format!("{name}.log")));
        let mut command = Command::new("redis-server");
        command.arg(&file).args(more).env_remove("LD_PRELOAD");
        command.stdin(Stdio::null()).stdout(log.map_err(problem)?).stderr(Stdio::null());
        sys::dies_with_parent(&mut command).spawn().map_err(|error| missing(&error))
    };
    Ok([run("server", server, &[])?, run("sentinel", sentinel, &["--sentinel"])?])
}

/// Whether there is a Redis at all.
///
/// # Errors
/// There is none: in words, and what to do.
pub fn is_there() -> std::result::Result<(), String> {
    let said =
        Command::new("redis-server").arg("--version").stdout(Stdio::null()).stdin(Stdio::null()).status();
    said.map(drop).map_err(|error| missing(&error))
}

fn missing(error: &Error) -> String {
    format!(
        "`redis-server` does not start: {error}. The comparison takes Redis 6 or later: apt-get install redis-server"
    )
}

/// Where the Sentinel of `host` says that the primary is.
///
/// # Errors
/// It does not say.
pub async fn primary(host: Host) -> Result<SocketAddr> {
    let mut sentinel = Connection::to(Plane::Peers.socket(host, SENTINEL)).await?;
    match sentinel.ask(&["SENTINEL", "get-master-addr-by-name", "main"]).await? {
        Answer::Many(parts) => {
            let text: Vec<String> = parts.iter().map(Answer::text).collect();
            text.join(":").parse().map_err(Error::other)
        }
        other => Err(Error::other(format!("{other:?}"))),
    }
}

/// Whether the Sentinel of `host` could fail over: it knows a majority of Sentinels and all replicas.
///
/// # Errors
/// It does not say.
pub async fn can_fail_over(host: Host, hosts: u8) -> Result<bool> {
    let mut sentinel = Connection::to(Plane::Peers.socket(host, SENTINEL)).await?;
    let quorum = sentinel.ask(&["SENTINEL", "ckquorum", "main"]).await?;
    let replicas = sentinel.ask(&["SENTINEL", "replicas", "main"]).await?;
    let all = matches!(&replicas, Answer::Many(replicas) if replicas.len() + 1 == usize::from(hosts));
    Ok(all && matches!(quorum, Answer::Text(_)))
}

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    Text(String),
    Refused(String),
    Number(i64),
    Nothing,
    Many(Vec<Answer>),
}

impl Answer {
    fn text(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Number(number) => number.to_string(),
            _ => String::new(),
        }
    }
}

/// A connection; one command at a time.
pub struct Connection {
    stream: BufStream<TcpStream>,
}

impl Connection {
    /// A connection to `address`.
    ///
    /// # Errors
    /// There is none to be had.
    pub async fn to(address: SocketAddr) -> Result<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Self { stream: BufStream::new(stream) })
    }

    /// Whether one more request of `tenant` fits.
    ///
    /// # Errors
    /// Redis does not say: it may have been counted or not.
    pub async fn admit(&mut self, tenant: &str, bucket: Bucket) -> Result<bool> {
        let (burst, per_minute) = (bucket.burst.to_string(), bucket.per_minute.to_string());
        match self.ask(&["EVAL", SCRIPT, "1", &format!("bucket:{tenant}"), &burst, &per_minute]).await? {
            Answer::Number(said) => Ok(said == 1),
            other => Err(Error::other(format!("{other:?}"))),
        }
    }

    /// Sends a command and reads its answer.
    ///
    /// # Errors
    /// As of the connection, or what was read is no answer.
    pub async fn ask(&mut self, words: &[&str]) -> Result<Answer> {
        let mut command = format!("*{}\r\n", words.len());
        for word in words {
            command += &format!("${}\r\n{word}\r\n", word.len());
        }
        self.stream.write_all(command.as_bytes()).await?;
        self.stream.flush().await?;
        self.read().await
    }

    async fn read(&mut self) -> Result<Answer> {
        let (kind, rest) = self.line().await?;
        match kind {
            b'*' => {
                let mut parts = Vec::new();
                for _ in 0..length(&rest)? {
                    parts.push(Box::pin(self.read()).await?);
                }
                Ok(Answer::Many(parts))
            }
            b'+' => Ok(Answer::Text(rest)),
            b'-' => Ok(Answer::Refused(rest)),
            b':' => rest.parse().map(Answer::Number).map_err(Error::other),
            b'$' if rest.starts_with('-') => Ok(Answer::Nothing),
            b'$' => {
                let mut bytes = vec![0; length(&rest)? + 2];
                self.stream.read_exact(&mut bytes).await?;
                bytes.truncate(bytes.len() - 2);
                String::from_utf8(bytes).map(Answer::Text).map_err(Error::other)
            }
            _ => Err(Error::new(ErrorKind::InvalidData, format!("no answer of Redis: {rest}"))),
        }
    }

    async fn line(&mut self) -> Result<(u8, String)> {
        let mut line = String::new();
        (&mut self.stream).take(LONGEST as u64).read_line(&mut line).await?;
        match line.as_bytes() {
            [kind, rest @ .., b'\r', b'\n'] => Ok((*kind, String::from_utf8_lossy(rest).into_owned())),
            _ => Err(Error::new(ErrorKind::UnexpectedEof, "the connection ended")),
        }
    }
}

fn length(text: &str) -> Result<usize> {
    text.parse::<usize>()
        .ok()
        .filter(|length| *length <= LONGEST)
        .ok_or_else(|| Error::new(ErrorKind::InvalidData, format!("an answer of {text} bytes or parts")))
}
