//! A server in the test's own process, over disks that the test can break.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tokio::runtime::Runtime;

use crate::commit::settings::Tunables;
use crate::config::ExportSpec;
use crate::export::Export;
use crate::nbd::transmission::Bounds;
use crate::server::{Address, Server, ServerLimits};
use crate::storage::crashdisk::{CrashDisk, Power};
use crate::storage::log::RING_START;
use crate::storage::recovery::{format, recover};
use crate::storage::volume::Volume;

pub(super) const MIB: u64 = 1 << 20;

/// The disks of one export.
#[derive(Clone)]
pub(super) struct Disks {
    pub(super) log: Arc<CrashDisk>,
    pub(super) data: Arc<CrashDisk>,
}

impl Disks {
    pub(super) fn new(size: u64, log: u64) -> Self {
        let power = Power::new();
        let log = CrashDisk::new(vec![0; (RING_START + log) as usize], power.clone());
        format(&*log, log.size(), size).unwrap();
        Self { log, data: CrashDisk::new(vec![0; size as usize], power) }
    }

    /// The disks after a crash that keeps only what was synced.
    pub(super) fn crashed(&self) -> Self {
        let power = Power::new();
        Self {
            log: CrashDisk::new(self.log.synced_image(), power.clone()),
            data: CrashDisk::new(self.data.synced_image(), power),
        }
    }

    /// The export's contents if the machine crashed now.
    pub(super) fn survivors(&self) -> Vec<u8> {
        let disks = self.crashed();
        recover(&*disks.log, disks.log.size(), &*disks.data, disks.data.size()).unwrap();
        disks.data.cached_image()
    }

    pub(super) fn volume(&self, depth: usize, tunables: Arc<Tunables>) -> Volume {
        let found = recover(&*self.log, self.log.size(), &*self.data, self.data.size()).unwrap();
        let (log, data) = (self.log.clone(), self.data.clone());
        Volume::start(found.superblock, log, data, depth, tunables).unwrap()
    }

    fn export(&self, spec: &ExportSpec, tunables: Arc<Tunables>) -> Export {
        let found = recover(&*self.log, self.log.size(), &*self.data, spec.size).unwrap();
        let max_payload = (spec.log_size / 2).min(32 * MIB) as u32;
        let disks = (self.log.clone() as _, self.data.clone() as _);
        Export::assemble(spec, found, disks, 2, max_payload, tunables).unwrap()
    }
}

pub(super) fn limits() -> ServerLimits {
    ServerLimits {
        connections: 64,
        handshake_timeout: Duration::from_secs(10),
        bounds: Bounds { in_flight: 64 << 20, write_timeout: Duration::from_secs(10) },
    }
}

/// A running server with exports `a`, `always` (every write durable) and `ro` (read-only).
pub(super) struct Rig {
    pub(super) runtime: Runtime,
    server: Option<Server>,
    pub(super) path: PathBuf,
    pub(super) a: Disks,
    pub(super) always: Disks,
    pub(super) ro: Disks,
}

impl Rig {
    pub(super) fn new() -> Self {
        Self::with(limits(), &[])
    }

    pub(super) fn with(limits: ServerLimits, more: &[Address]) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let n = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("storage-server-{}-{n}.sock", std::process::id());
        let path = std::env::temp_dir().join(name);
        let size = 2 * MIB;
        let [a, always, ro] = [0; 3].map(|_| Disks::new(size, 4 * MIB));
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        let tunables = Arc::new(Tunables::default());
        let spec = |name: &str, sync_always, read_only| ExportSpec {
            name: name.into(),
            path: PathBuf::new(),
            size,
            log_size: 4 * MIB,
            sync_always,
            read_only,
        };
        let exports = vec![
            a.export(&spec("a", false, false), tunables.clone()),
            always.export(&spec("always", true, false), tunables.clone()),
            ro.export(&spec("ro", false, true), tunables),
        ];
        let mut addresses = more.to_vec();
        addresses.push(Address::Unix(path.clone()));
        let server = runtime.block_on(async { Server::start(exports, &addresses, limits) });
        Self { runtime, server: Some(server.unwrap()), path, a, always, ro }
    }

    pub(super) fn server(&self) -> &Server {
        self.server.as_ref().unwrap()
    }

    pub(super) fn stop(&mut self, grace: Duration) {
        if let Some(server) = self.server.take() {
            self.runtime.block_on(server.shutdown(grace));
        }
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        for disks in [&self.a, &self.always, &self.ro] {
            disks.log.hold_syncs(false);
            disks.data.hold_syncs(false);
        }
        self.stop(Duration::from_millis(200));
    }
}
