//! An export: a name that clients ask for, and the storage behind it.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::commit::settings::Tunables;
use crate::config::ExportSpec;
use crate::nbd::option::ExportInfo;
use crate::nbd::proto::*;
use crate::storage::device::{DeviceModel, SimDisk};
use crate::storage::disk::{Disk, FileDisk, sync_directory_of};
use crate::storage::log::RING_START;
use crate::storage::recovery::{self, Recovered};
use crate::storage::volume::Volume;

/// See the module's text.
pub(crate) struct Export {
    pub(crate) info: ExportInfo,
    pub(crate) volume: Volume,
    /// Every write is acknowledged only when it is durable.
    pub(crate) sync_always: bool,
    pub(crate) recovered: Recovered,
}

impl Export {
    /// The transmission flags. A flag is set only if it is honoured.
    pub(crate) fn flags(read_only: bool, zeroes_fast: bool) -> u16 {
        let mut flags = HAS_FLAGS | SEND_FLUSH | SEND_FUA | SEND_CACHE;
        // All connections share one log, so a flush on any covers the writes of all.
        flags |= CAN_MULTI_CONN;
        if read_only {
            return flags | READ_ONLY;
        }
        flags |= SEND_TRIM | SEND_WRITE_ZEROES;
        flags | if zeroes_fast { SEND_FAST_ZERO } else { 0 }
    }

    /// Opens the files of an export and recovers it.
    pub(crate) fn open(
        spec: &ExportSpec,
        device: Option<DeviceModel>,
        depth: usize,
        max_payload: u32,
        tunables: Arc<Tunables>,
    ) -> Result<Self, String> {
        let fail = |what: &str, error: &dyn std::fmt::Display| {
            format!("export {:?}: {what}: {error}", spec.name)
        };
        let log_path = log_path(&spec.path);
        let fresh = !log_path.exists();
        let has_data = spec.path.exists();
        if !has_data && spec.read_only {
            return Err(fail("read-only", &"there is no data file to serve"));
        }
        if !has_data && !fresh {
            // Serving zeros with the last few writes on top would hide the loss.
            let text = format!("{} is there, but not its data file", log_path.display());
            return Err(fail("data", &text));
        }
        // Recovery writes, so even a read-only export is opened for writing.
        let data = FileDisk::open(&spec.path, spec.size).map_err(|e| fail("data", &e))?;
        let log_size = RING_START + spec.log_size;
        if fresh {
            make_log(&log_path, log_size, spec.size).map_err(|e| fail("new log", &e))?;
        }
        let log_size = std::fs::metadata(&log_path).map_err(|e| fail("log", &e))?.len();
        let log = FileDisk::open(&log_path, log_size).map_err(|e| fail("log", &e))?;
        let recovered = recovery::recover(&log, log_size, &data, spec.size)
            .map_err(|e| fail(&log_path.display().to_string(), &e))?;
        let (log, data): (Arc<dyn Disk>, Arc<dyn Disk>) = match device {
            None => (Arc::new(log), Arc::new(data)),
            // One model for both files: they share the device.
            Some(model) => {
                let device = Arc::new(model.start());
                (Arc::new(SimDisk::new(log, device.clone())), Arc::new(SimDisk::new(data, device)))
            }
        };
        Self::assemble(spec, recovered, (log, data), depth, max_payload, tunables)
            .map_err(|e| fail("threads", &e))
    }

    /// An export over disks that are recovered.
    pub(crate) fn assemble(
        spec: &ExportSpec,
        recovered: Recovered,
        (log, data): (Arc<dyn Disk>, Arc<dyn Disk>),
        depth: usize,
        max_payload: u32,
        tunables: Arc<Tunables>,
    ) -> io::Result<Self> {
        let volume = Volume::start(recovered.superblock, log, data, depth, tunables)?;
        let info = ExportInfo {
            name: spec.name.clone(),
            description: format!("{} bytes behind a write-ahead log", spec.size),
            size: spec.size,
            flags: Self::flags(spec.read_only, volume.zeroes_fast()),
            max_payload,
        };
        Ok(Self { info, volume, sync_always: spec.sync_always, recovered })
    }

    pub(crate) fn read_only(&self) -> bool {
        self.info.flags & READ_ONLY != 0
    }

    /// See [`Volume::close`].
    pub(crate) fn close(self, limit: Duration) {
        self.volume.close(limit);
    }
}

/// The log lies beside the data file.
pub(crate) fn log_path(data: &Path) -> PathBuf {
    let mut name = data.as_os_str().to_owned();
    name.push(".wal");
    name.into()
}

/// Makes a log under another name first: a log whose name is there is a whole one.
fn make_log(path: &Path, size: u64, export_size: u64) -> io::Result<()> {
    let mut unfinished = path.as_os_str().to_owned();
    unfinished.push(".new");
    let unfinished = PathBuf::from(unfinished);
    if unfinished.exists() {
        std::fs::remove_file(&unfinished)?;
    }
    let log = FileDisk::open(&unfinished, size)?;
    log.preallocate(size)?;
    recovery::format(&log, size, export_size)?;
    std::fs::rename(&unfinished, path)?;
    sync_directory_of(path)
}
