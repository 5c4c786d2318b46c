//! A node that is its own cluster agrees with itself: what was put in force outlives its process, as long as it has a data folder.

#![allow(clippy::unwrap_used, reason = "an answer of another shape fails the test, as it should")]

mod support;

use std::fs;
use std::path::Path;

use serde_json::Value;
use support::cluster::{SECRET, free_address};
use support::policy::{AMPLE, PROVIDER_KEY};
use support::process::{temporary_directory, tollgate};
use support::{Client, Key, Policy, Process, eventually};

const TOKEN: &str = "the token of this test's operator";

/// A running node.
struct Alone {
    process: Process,
    callers: String,
    admin: String,
}

impl Alone {
    /// A node that keeps its data in `folder`, with these arguments beside.
    async fn start(folder: &Path, arguments: &[&str]) -> Alone {
        let mut command = tollgate("serve");
        command
            .args(["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--data"])
            .arg(folder.join("data"))
            .args(arguments)
            .env("TOLLGATE_ADMIN_TOKEN", TOKEN)
            .env(PROVIDER_KEY, "sk-simulated");
        let mut process = Process::start("tollgate serve", command, temporary_directory());
        let line = process.line("callers=").await;
        let word = |prefix: &str| {
            let (_, rest) = line.split_once(prefix).unwrap();
            rest.split_whitespace().next().unwrap().to_owned()
        };
        Alone { callers: word("callers="), admin: word("admin="), process }
    }

    async fn readiness(&self) -> String {
        Client::new().get(&format!("{}/readyz", self.admin), &[]).await.text()
    }

    async fn look(&self, path: &str) -> Value {
        let bearer = format!("Bearer {TOKEN}");
        Client::new().get(&format!("{}{path}", self.admin), &[("authorization", &bearer)]).await.json()
    }

    async fn status(&self, key: &Key) -> u16 {
        let url = format!("{}/v1/models", self.callers);
        Client::new().get(&url, &[("authorization", &key.bearer())]).await.status
    }

    fn command(&self, words: &[&str]) -> (i32, String, String) {
        let output = tollgate(words[0])
            .args(&words[1..])
            .args(["--admin", &self.admin])
            .env("TOLLGATE_ADMIN_TOKEN", TOKEN)
            .output()
            .unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        (output.status.code().unwrap_or(-1), text(output.stdout), text(output.stderr))
    }
}

fn policy(tenants: &[&str]) -> String {
    let nowhere = Policy::at("http://127.0.0.1:9");
    tenants.iter().fold(nowhere, |policy, tenant| policy.tenant(tenant, &Key::of(tenant), AMPLE)).yaml()
}

#[tokio::test]
async fn a_node_that_was_given_no_file_waits_for_a_policy_and_keeps_it() {
    let folder = temporary_directory();
    let file = folder.path().join("applied.yaml");
    fs::write(&file, policy(&["acme"])).unwrap();
    let mut node = Alone::start(folder.path(), &[]).await;
    assert!(node.readiness().await.contains("waiting for a policy"), "{}", node.readiness().await);
    assert_eq!(node.status(&Key::of("acme")).await, 503, "nobody can know yet whose key that is");
    let (code, out, problem) = node.command(&["apply", file.to_str().unwrap(), "--expect", "0"]);
    assert_eq!(code, 0, "{problem}");
    assert!(out.contains("Version 1 is in force on every node."), "{out}");
    assert_eq!((node.readiness().await.trim(), node.status(&Key::of("acme")).await), ("ready", 200));
    let (code, out, problem) =
        node.command(&["keys", "create", "--tenant", "acme", "--label", "more", "--json"]);
    assert_eq!(code, 0, "{problem}");
    let page: Value = serde_json::from_str(&out).unwrap();
    let key = Key { secret: page["key"].as_str().unwrap().to_owned(), hash: String::new() };
    assert_eq!(node.status(&key).await, 200);

    node.process.kill();
    let node = Alone::start(folder.path(), &[]).await;
    assert_eq!(node.status(&Key::of("acme")).await, 200);
    assert_eq!(node.status(&key).await, 200);
    let page = node.look("/v1/policy").await;
    assert_eq!((&page["version"], &page["agreed_version"]), (&1.into(), &2.into()), "{page}");
}

#[tokio::test]
async fn a_file_that_is_edited_while_its_node_is_down_is_an_edit_unless_others_were_faster() {
    let folder = temporary_directory();
    let file = folder.path().join("policy.yaml");
    let arguments = ["--policy", file.to_str().unwrap()];
    fs::write(&file, policy(&["acme"])).unwrap();
    let mut node = Alone::start(folder.path(), &arguments).await;
    let noted = folder.path().join("data").join("policy.in-step.json");
    eventually("what the file is in step with is noted", async || {
        fs::read_to_string(&noted).map(|_| ()).map_err(|error| error.to_string())
    })
    .await;
    node.process.stop();
    fs::write(&file, policy(&["acme", "beta"])).unwrap();
    let mut node = Alone::start(folder.path(), &arguments).await;
    eventually("the edit is in force", async || match node.status(&Key::of("beta")).await {
        200 => Ok(()),
        status => Err(status.to_string()),
    })
    .await;
    assert_eq!(node.look("/v1/policy").await["version"], 2);

    // An operator puts something else in force; the file is behind from then on.
    let other = folder.path().join("other.yaml");
    fs::write(&other, policy(&["acme", "gamma"])).unwrap();
    assert_eq!(node.command(&["apply", other.to_str().unwrap()]).0, 0);
    node.process.stop();
    fs::write(&file, policy(&["delta"])).unwrap();
    let node = Alone::start(folder.path(), &arguments).await;
    eventually("the conflict is said", async || {
        let page = node.look("/v1/policy").await;
        if page["file"]["conflict"].is_string() { Ok(()) } else { Err(page.to_string()) }
    })
    .await;
    assert_eq!(node.look("/v1/policy").await["version"], 3);
    assert_eq!((node.status(&Key::of("gamma")).await, node.status(&Key::of("delta")).await), (200, 401));
}

#[tokio::test]
async fn a_node_that_was_alone_founds_a_cluster_with_what_it_has_agreed_on() {
    let folder = temporary_directory();
    let file = folder.path().join("policy.yaml");
    fs::write(&file, policy(&["acme"])).unwrap();
    let mut node = Alone::start(folder.path(), &["--policy", file.to_str().unwrap()]).await;
    let (code, _, problem) = node.command(&["keys", "create", "--tenant", "acme", "--label", "more"]);
    assert_eq!(code, 0, "{problem}");
    node.process.stop();

    let (secret, first, second) = (folder.path().join("secret"), free_address(), free_address());
    fs::write(&secret, SECRET).unwrap();
    let (first, second) = (first.to_string(), second.to_string());
    let secret = ["--secret-file", secret.to_str().unwrap()];
    let founds = [&["--peer", &first, "--bootstrap"], &secret[..]].concat();
    let mut founder = Alone::start(folder.path(), &founds).await;
    eventually("it is a cluster", async || match founder.readiness().await {
        ready if ready.starts_with("ready") => Ok(()),
        waiting => Err(waiting),
    })
    .await;
    let elsewhere = temporary_directory();
    let joins = [&["--peer", &second, "--join", &first], &secret[..]].concat();
    let joined = Alone::start(elsewhere.path(), &joins).await;
    eventually("another has joined", async || match joined.readiness().await {
        ready if ready.starts_with("ready") => Ok(()),
        waiting => Err(waiting),
    })
    .await;
    for node in [&founder, &joined] {
        let page = node.look("/v1/policy").await;
        assert_eq!((&page["version"], &page["agreed_version"]), (&1.into(), &2.into()), "{page}");
    }

    // And from then on it is a member: alone it does not start.
    founder.process.stop();
    let mut command = tollgate("serve");
    command
        .args(["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--data"])
        .arg(folder.path().join("data"));
    let mut refused = Process::start("tollgate serve", command, temporary_directory());
    assert_eq!(refused.ended().await.code(), Some(1));
    assert!(refused.log().contains("start it with --peer as before"), "{}", refused.log());
}
