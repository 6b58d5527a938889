//! Opening exports in real files: what is made, what is refused.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::commit::settings::Tunables;
use crate::config::ExportSpec;
use crate::export::{Export, log_path};

struct Directory(PathBuf);

impl Directory {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("storage-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn open(path: &std::path::Path, size: u64) -> Result<Export, String> {
    let spec = ExportSpec {
        name: "e".into(),
        path: path.to_path_buf(),
        size,
        log_size: 1 << 20,
        sync_always: false,
        read_only: false,
    };
    Export::open(&spec, None, 1, 512 << 10, Arc::new(Tunables::default()))
}

fn run<F: Future>(future: F) -> F::Output {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
}

#[test]
fn an_export_keeps_its_contents_over_restarts_and_refuses_what_does_not_fit() {
    let directory = Directory::new("restarts");
    let path = directory.0.join("data.img");
    let export = open(&path, 1 << 20).unwrap();
    let error = open(&path, 1 << 20).err().unwrap();
    assert!(error.contains("in use"), "{error}");
    run(async {
        export.volume.write(8_192, vec![7; 4_096]).await.unwrap();
        export.volume.flush().await.unwrap();
    });
    export.close(Duration::from_secs(10));
    let image = std::fs::read(&path).unwrap();
    assert!(image[8_192..12_288] == [7; 4_096], "checkpointed at the end");

    let export = open(&path, 1 << 20).unwrap();
    assert_eq!(export.recovered.replayed, 0, "an orderly stop leaves nothing to replay");
    let mut page = [0; 4_096];
    export.volume.read(8_192, &mut page).unwrap();
    assert_eq!(page, [7; 4_096]);
    export.close(Duration::from_secs(10));

    let error = open(&path, 2 << 20).err().unwrap();
    assert!(error.contains("1048576") && error.contains("2097152"), "{error}");
    // Without its data file a log is worth nothing, and starting over would hide the loss.
    std::fs::remove_file(&path).unwrap();
    let error = open(&path, 1 << 20).err().unwrap();
    assert!(error.contains("not its data file"), "{error}");
    // A log that was not finished when it was made is made again.
    std::fs::rename(log_path(&path), directory.0.join("data.img.wal.new")).unwrap();
    open(&path, 1 << 20).unwrap().close(Duration::from_secs(10));
}

#[test]
fn the_real_file_zeroes_and_reads_back() {
    use crate::storage::disk::{Disk, FileDisk, Zeroing, write_zeroes};
    let directory = Directory::new("zeroes");
    let disk = FileDisk::open(&directory.0.join("d"), 3 << 20).unwrap();
    for how in [Zeroing::Discard, Zeroing::KeepAllocated] {
        disk.write_at(&vec![5; 3 << 20], 0).unwrap();
        disk.zero_at(1_000, 2 << 20, how).unwrap();
        disk.sync().unwrap();
        let mut all = vec![1; 3 << 20];
        disk.read_at(&mut all, 0).unwrap();
        let zeros = 1_000..1_000 + (2 << 20);
        assert!(all.iter().enumerate().all(|(i, b)| (*b == 0) == zeros.contains(&i)), "{how:?}");
    }
    write_zeroes(&disk, 0, 3 << 20).unwrap();
    let mut all = vec![1; 3 << 20];
    disk.read_at(&mut all, 0).unwrap();
    assert!(all.iter().all(|b| *b == 0));
}
