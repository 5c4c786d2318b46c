//! The world of production: the operating system's sockets, chance and files.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use tokio::net::{TcpListener, TcpStream, UdpSocket};

use super::{Datagrams, Entropy, Folder, Listener, Network, Stream};

/// The operating system's network.
#[derive(Clone, Copy, Debug, Default)]
pub struct TokioNetwork;

#[async_trait]
impl Network for TokioNetwork {
    async fn connect(&self, to: SocketAddr) -> io::Result<Box<dyn Stream>> {
        let stream = TcpStream::connect(to).await?;
        stream.set_nodelay(true)?;
        Ok(Box::new(stream))
    }

    async fn listen(&self, at: SocketAddr) -> io::Result<Box<dyn Listener>> {
        Ok(Box::new(TcpListener::bind(at).await?))
    }

    async fn datagrams(&self, at: SocketAddr) -> io::Result<Arc<dyn Datagrams>> {
        Ok(Arc::new(UdpSocket::bind(at).await?))
    }

    async fn resolve(&self, name: &str) -> io::Result<Vec<SocketAddr>> {
        Ok(tokio::net::lookup_host(name).await?.collect())
    }
}

#[async_trait]
impl Listener for TcpListener {
    async fn accept(&mut self) -> io::Result<(Box<dyn Stream>, SocketAddr)> {
        let (stream, from) = Self::accept(self).await?;
        stream.set_nodelay(true)?;
        Ok((Box::new(stream), from))
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Self::local_addr(self)
    }
}

#[async_trait]
impl Datagrams for UdpSocket {
    async fn send_to(&self, datagram: &[u8], to: SocketAddr) -> io::Result<()> {
        Self::send_to(self, datagram, to).await.map(|_| ())
    }

    async fn recv_from(&self, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        Self::recv_from(self, buffer).await
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Self::local_addr(self)
    }
}

/// The operating system's chance.
#[derive(Clone, Copy, Debug, Default)]
pub struct OsEntropy;

impl Entropy for OsEntropy {
    fn fill(&self, bytes: &mut [u8]) {
        use rand::Rng as _;
        rand::rng().fill_bytes(bytes);
    }
}

/// A folder of the file system. The store is its `cluster.redb`.
#[derive(Clone, Debug)]
pub struct FileFolder(pub PathBuf);

impl FileFolder {
    /// The name of the store's file.
    pub const FILE: &str = "cluster.redb";
}

impl Folder for FileFolder {
    fn open(&self) -> io::Result<Box<dyn redb::StorageBackend>> {
        std::fs::create_dir_all(&self.0)?;
        let file = std::fs::File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(self.0.join(Self::FILE))?;
        // The file's name must be on disk before what is in it can matter.
        std::fs::File::open(&self.0)?.sync_all()?;
        let backend = redb::backends::FileBackend::new(file).map_err(io::Error::other)?;
        Ok(Box::new(backend))
    }

    fn name(&self) -> String {
        self.0.display().to_string()
    }

    fn blocks(&self) -> bool {
        true
    }
}
