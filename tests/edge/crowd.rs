//! A thousand callers that do not do their part: all are cut, nothing is left of them, and who behaves is served meanwhile.

use futures_util::future::join_all;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpSocket;

use crate::raw::{LIMITS, good, head, impatient, key, until_closed};
use crate::support::inside::{chat, streamed};
use crate::support::{Inside, Key};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_callers_that_do_not_do_their_part() {
    let well = Key::of("well-behaved");
    let inside = Inside::with(impatient, |policy| {
        policy.tenant("northwind", &key(), LIMITS).tenant("contoso", &well, LIMITS)
    })
    .await;
    let address = inside.gateway.callers();
    let silent_body = head("POST /v1/chat/completions HTTP/1.1", "Content-Length: 1000\r\n");
    let body = streamed(chat(900_000)).to_string();
    let endless = head(
        "POST /v1/chat/completions HTTP/1.1",
        &format!("X-Sim: tokens=100000\r\nContent-Length: {}\r\n", body.len()),
    ) + &body;
    let slow = (0..1_000).map(|number| {
        let (silent_body, endless) = (&silent_body, &endless);
        async move {
            let socket = TcpSocket::new_v4().unwrap();
            // So that what is not read soon stands at the node.
            socket.set_recv_buffer_size(4 * 1024).unwrap();
            let mut stream = socket.connect(address).await.unwrap();
            let said = match number % 5 {
                0 => String::new(),
                1 => "POST /v1/chat/comp".to_owned(),
                2 => silent_body.clone(),
                3 => good(),
                // Few, since each is megabytes in the sockets' buffers.
                _ if number % 50 == 4 => endless.clone(),
                _ => "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_owned(),
            };
            stream.write_all(said.as_bytes()).await.unwrap();
            if said.len() == endless.len() {
                // It reads the first of its answer and no more.
                stream.read_exact(&mut [0; 12]).await.unwrap();
                return Some(stream);
            }
            let read = tokio::time::timeout(crate::support::PATIENCE, until_closed(&mut stream)).await;
            read.unwrap_or_else(|_| panic!("caller {number} was not cut"));
            None
        }
    });
    let behaved = async {
        for _ in 0..50 {
            assert_eq!(inside.chat(&well, "", &chat(4)).await.status, 200);
        }
    };
    let (unread, ()) = tokio::join!(join_all(slow), behaved);
    inside.assert_at_rest().await;
    crate::support::eventually("no connection is left but the client's own", async || {
        match inside.node().metrics.connections.get() {
            0 => Ok(()),
            open => Err(format!("{open} open")),
        }
    })
    .await;
    assert_eq!(inside.limit(&key(), "tenant", "max_inflight").await["used"], 0);
    assert_eq!(inside.node().owners().held().open, 0);
    drop(unread);
}
