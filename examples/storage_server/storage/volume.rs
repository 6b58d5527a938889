//! An export's storage with its threads: commit threads, one checkpoint thread, async waits.
//!
//! There are as many commit threads as the log has depth, and a free thread *is* the right to
//! start a log write. Locks, in the order they are taken: `core`, never held over I/O; `still`,
//! held shared by a read from its look at the overlay to the end of its file read, and exclusively
//! by a checkpoint while it changes the data file: so a read sees one moment of the export.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::commit::group::Step;
use crate::commit::settings::{Nanos, Tunables};
use crate::errno::Errno;
use crate::stats::Stats;
use crate::wait::{CommitSignal, Gate, lock};

use super::checkpoint::{CheckpointFault, Plan, move_tail, write_extent};
use super::core::{AppendError, Core, Effects, LogFault, LogWrite, Wanted};
use super::disk::{Disk, Zeroing};
use super::log::{Change, Superblock};

/// How long a failed checkpoint waits before it is tried again.
const CHECKPOINT_RETRY: Duration = Duration::from_millis(100);

/// A running export. Dropping it without `close` stops the threads and leaves the rest to replay.
pub(crate) struct Volume {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

struct Shared {
    core: Mutex<Core>,
    commits: CommitSignal,
    checkpoints: CommitSignal,
    still: RwLock<()>,
    log: Arc<dyn Disk>,
    data: Arc<dyn Disk>,
    tunables: Arc<Tunables>,
    stats: Arc<Stats>,
    started: Instant,
    /// No more log writes will be started, once those queued are done.
    closing: AtomicBool,
    /// The log was found half full, or the export closes.
    pressed: AtomicBool,
    /// A writer found no room.
    full: AtomicBool,
    /// The checkpoint thread waits for this record to be durable; `u64::MAX` when it does not.
    awaited: AtomicU64,
    /// Opens at the next checkpoint, good or bad.
    room: Mutex<Arc<Gate>>,
}

impl Volume {
    /// Starts the threads of an export whose log is recovered.
    pub(crate) fn start(
        superblock: Superblock,
        log: Arc<dyn Disk>,
        data: Arc<dyn Disk>,
        depth: usize,
        tunables: Arc<Tunables>,
    ) -> std::io::Result<Self> {
        let shared = Arc::new(Shared {
            core: Mutex::new(Core::new(superblock, depth)),
            commits: CommitSignal::default(),
            checkpoints: CommitSignal::default(),
            still: RwLock::new(()),
            log,
            data,
            tunables,
            stats: Arc::new(Stats::default()),
            started: Instant::now(),
            closing: AtomicBool::new(false),
            pressed: AtomicBool::new(false),
            full: AtomicBool::new(false),
            awaited: AtomicU64::new(u64::MAX),
            room: Mutex::new(Arc::default()),
        });
        let mut threads = Vec::with_capacity(depth + 1);
        for i in 0..depth {
            let shared = shared.clone();
            let builder = std::thread::Builder::new().name(format!("commit-{i}"));
            threads.push(builder.spawn(move || shared.commit_loop())?);
        }
        let other = shared.clone();
        let builder = std::thread::Builder::new().name("checkpoint".into());
        threads.push(builder.spawn(move || other.checkpoint_loop())?);
        Ok(Self { shared, threads })
    }

    pub(crate) fn stats(&self) -> &Arc<Stats> {
        &self.shared.stats
    }

    /// True when zeroing costs much less than writing zeros.
    pub(crate) fn zeroes_fast(&self) -> bool {
        // A zeroing is a record without payload; the file pays for it at the checkpoint.
        self.shared.data.zeroes_fast()
    }

    /// Takes a write. It is visible to reads at once and durable when `durable` says so.
    pub(crate) async fn write(&self, offset: u64, bytes: Vec<u8>) -> Result<u64, Errno> {
        self.append(offset, Change::Write(bytes.into())).await
    }

    /// Makes a range read as zeros.
    pub(crate) async fn zero(&self, offset: u64, length: u32, how: Zeroing) -> Result<u64, Errno> {
        self.append(offset, Change::Zero(length, how)).await
    }

    /// Takes a change, waiting for room in the log if need be.
    async fn append(&self, offset: u64, change: Change) -> Result<u64, Errno> {
        let shared = &self.shared;
        loop {
            // Before the attempt, so that a checkpoint in between is not missed.
            let room = lock(&shared.room).clone();
            let settings = shared.tunables.settings();
            let outcome = {
                let mut core = lock(&shared.core);
                if !core.could_take(&change) {
                    return Err(Errno::NoSpace);
                }
                let outcome = core.append(offset, change.clone(), &settings);
                if outcome == Err(AppendError::Full) {
                    shared.full.store(true, Ordering::SeqCst);
                    shared.checkpoints.notify_all();
                } else if core.used() > core.capacity() / 2 {
                    shared.press();
                }
                outcome
            };
            match outcome {
                Ok((seq, wake)) => {
                    if wake {
                        shared.commits.notify_all();
                    }
                    return Ok(seq);
                }
                Err(AppendError::Refused(errno)) => return Err(errno),
                Err(AppendError::Full) => room.passed().await?,
            }
        }
    }

    /// Waits until record `seq` and all before it are durable.
    pub(crate) async fn durable(&self, seq: u64) -> Result<(), Errno> {
        let settings = self.shared.tunables.settings();
        let wanted = lock(&self.shared.core).want(self.shared.now(), seq, &settings);
        match wanted {
            Wanted::Durable => Ok(()),
            Wanted::Refused(errno) => Err(errno),
            Wanted::Wait(gate, wake) => {
                if wake {
                    self.shared.commits.notify_all();
                }
                gate.passed().await
            }
        }
    }

    /// Makes all changes taken so far durable, whoever made them.
    pub(crate) async fn flush(&self) -> Result<(), Errno> {
        let last = lock(&self.shared.core).last_seq();
        self.durable(last).await
    }

    /// Reads a range as it was at one moment of this call. Blocks on the disk.
    pub(crate) fn read(&self, offset: u64, buf: &mut [u8]) -> Result<(), Errno> {
        let shared = &self.shared;
        let end = offset + buf.len() as u64;
        let _still = shared.still.read().unwrap_or_else(PoisonError::into_inner);
        let newer = lock(&shared.core).overlay.slice(offset, end);
        let covered: u64 = newer.iter().map(|e| e.length).sum();
        if covered < buf.len() as u64 {
            shared.data.read_at(buf, offset).map_err(|e| Errno::from_io(&e))?;
        }
        for extent in newer {
            let start = (extent.offset - offset) as usize;
            let target = &mut buf[start..start + extent.length as usize];
            match extent.bytes() {
                Some(bytes) => target.copy_from_slice(bytes),
                None => target.fill(0),
            }
        }
        Ok(())
    }

    /// Asks the system to have a range at hand.
    pub(crate) fn prefetch(&self, offset: u64, length: u64) {
        self.shared.data.prefetch(offset, length);
    }

    /// Why the export can no longer promise durability, if it cannot.
    pub(crate) fn poisoned(&self) -> Option<Errno> {
        lock(&self.shared.core).poisoned()
    }

    /// The running mean of the log-write latency.
    pub(crate) fn mean_latency(&self) -> Duration {
        Duration::from_nanos(lock(&self.shared.core).group.mean_latency())
    }

    /// Sends out what is queued, moves everything into the data file and stops the threads.
    /// Blocks for at most `limit`; what is not done by then is left to replay.
    pub(crate) fn close(mut self, limit: Duration) {
        let deadline = Instant::now() + limit;
        self.shared.close(true);
        while !self.threads.iter().all(JoinHandle::is_finished) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
        }
        for thread in self.threads.drain(..).filter(JoinHandle::is_finished) {
            // The loops catch the panics of disks; there is nothing else to learn here.
            let _ = thread.join();
        }
    }
}

impl Drop for Volume {
    fn drop(&mut self) {
        self.shared.close(false);
    }
}

impl Shared {
    fn now(&self) -> Nanos {
        self.started.elapsed().as_nanos() as Nanos
    }

    fn close(&self, with_checkpoint: bool) {
        // Under the lock, so that no thread is between its checks and its wait.
        let _core = lock(&self.core);
        self.closing.store(true, Ordering::SeqCst);
        self.pressed.fetch_or(with_checkpoint, Ordering::SeqCst);
        self.commits.notify_all();
        self.checkpoints.notify_all();
    }

    fn press(&self) {
        if !self.pressed.swap(true, Ordering::SeqCst) {
            self.checkpoints.notify_all();
        }
    }

    fn closing(&self) -> bool {
        self.closing.load(Ordering::SeqCst)
    }

    /// A commit thread: look, then write a block, wait for the end of a window, or sleep.
    fn commit_loop(&self) {
        let mut core = lock(&self.core);
        loop {
            let now = self.now();
            match core.next(now) {
                Step::Issue { id, first, last } => {
                    let write = core.prepare(id, first, last);
                    if core.group.has_waiting() {
                        // This thread may have been the one to watch the next block's window.
                        self.commits.notify_all();
                    }
                    drop(core);
                    let outcome = self.log_write(&write);
                    self.stats.commit(write.records() as u64, self.now() - now);
                    core = lock(&self.core);
                    let effects = core.complete(self.now(), id, outcome);
                    if core.durable_seq() >= self.awaited.load(Ordering::SeqCst) {
                        self.checkpoints.notify_all();
                    }
                    // The gates open without the lock: what they wake is user code.
                    drop(core);
                    self.apply(effects);
                    core = lock(&self.core);
                }
                // Whatever woke this thread, an ended window is served.
                Step::Wait { id, window } if now >= window.deadline => core.group.window_ended(id),
                Step::Wait { .. } if core.window_is_watched => {
                    core = self.commits.wait(&self.core, core);
                }
                Step::Wait { id, window } => {
                    core.window_is_watched = true;
                    let deadline = self.started + Duration::from_nanos(window.deadline);
                    let slack = Duration::from_nanos(window.slack);
                    let ended;
                    (core, ended) = self.commits.wait_until(&self.core, core, deadline, slack);
                    core.window_is_watched = false;
                    if ended {
                        let late = self.now().saturating_sub(window.deadline);
                        self.stats.window_ended(late);
                        core.group.window_ended(id);
                    }
                }
                Step::Idle => {
                    if self.closing() && (core.group.is_idle() || core.poisoned().is_some()) {
                        return;
                    }
                    if self.closing() && core.group.seal() {
                        continue;
                    }
                    core = self.commits.wait(&self.core, core);
                }
            }
        }
    }

    /// Writes and syncs one block. A disk whose code panics is a disk that failed: followers
    /// get an error, and the commit thread lives on.
    fn log_write(&self, write: &LogWrite) -> Result<(), LogFault> {
        let log = &*self.log;
        catch_unwind(AssertUnwindSafe(|| write.write(log)))
            .unwrap_or(Err(LogFault::Write(Errno::Io)))?;
        catch_unwind(AssertUnwindSafe(|| LogWrite::sync(log)))
            .unwrap_or(Err(LogFault::Sync(Errno::Io)))
    }

    fn apply(&self, effects: Effects) {
        for (gate, outcome) in effects.open {
            gate.open(outcome);
        }
        if effects.wake {
            self.commits.notify_all();
        }
        if effects.poisoned {
            self.checkpoints.notify_all();
            self.next_room(Err(Errno::Io));
        }
    }

    /// Lets those go that wait for room in the log.
    fn next_room(&self, outcome: Result<(), Errno>) {
        let old = std::mem::take(&mut *lock(&self.room));
        old.open(outcome);
    }

    /// The checkpoint thread: when the log is half full, when a writer finds it full, at the end.
    fn checkpoint_loop(&self) {
        let mut core = lock(&self.core);
        loop {
            if core.poisoned().is_some() {
                drop(core);
                // Whoever comes to wait for room after this sees the poison first.
                self.next_room(Err(Errno::Io));
                return;
            }
            // What pressed may be gone by now: a checkpoint was running when it was noted.
            let pressed = self.pressed.swap(false, Ordering::SeqCst)
                && (core.used() > core.capacity() / 2 || self.closing());
            if self.full.swap(false, Ordering::SeqCst) || pressed {
                core = self.checkpoint(core);
                continue;
            }
            if self.closing() {
                return;
            }
            core = self.checkpoints.wait(&self.core, core);
        }
    }

    /// One checkpoint. Comes back with the lock held.
    fn checkpoint<'a>(&'a self, mut core: MutexGuard<'a, Core>) -> MutexGuard<'a, Core> {
        // Everything appended so far, closed off as a block and made durable.
        let plan = Plan { extents: core.overlay.snapshot(), upto: core.last_seq() };
        core.group.seal();
        self.commits.notify_all();
        self.awaited.store(plan.upto, Ordering::SeqCst);
        while core.durable_seq() < plan.upto {
            if core.poisoned().is_some() {
                return core;
            }
            core = self.checkpoints.wait(&self.core, core);
        }
        self.awaited.store(u64::MAX, Ordering::SeqCst);
        let (old, tail) = (core.superblock, core.end_of(plan.upto));
        drop(core);
        // Nothing new since the last checkpoint: no block ends here any more.
        let result = tail.map(|tail| self.move_data(&plan, old, tail));
        let mut core = lock(&self.core);
        match result {
            None => self.next_room(Ok(())),
            Some(Ok(superblock)) => {
                core.checkpointed(plan.upto, superblock);
                self.stats.checkpoint();
                self.next_room(Ok(()));
            }
            Some(Err(CheckpointFault::Sync(error))) => {
                let mut effects = Effects::default();
                core.poison(Errno::from_io(&error), &mut effects);
                drop(core);
                self.apply(effects);
                core = lock(&self.core);
            }
            Some(Err(CheckpointFault::Write(error))) => {
                // The log keeps what the data file could not take. Writers that need the room
                // get the error; the next checkpoint tries again.
                self.next_room(Err(Errno::from_io(&error)));
                if !self.closing() {
                    drop(core);
                    std::thread::sleep(CHECKPOINT_RETRY);
                    core = lock(&self.core);
                }
            }
        }
        core
    }

    fn move_data(
        &self,
        plan: &Plan,
        old: Superblock,
        tail: u64,
    ) -> Result<Superblock, CheckpointFault> {
        let work = || {
            for extent in &plan.extents {
                let _alone = self.still.write().unwrap_or_else(PoisonError::into_inner);
                write_extent(&*self.data, extent)?;
            }
            move_tail(&*self.log, &*self.data, old, tail, plan.upto + 1)
        };
        let panicked = |_| Err(CheckpointFault::Sync(std::io::Error::other("the disk panicked")));
        catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(panicked)
    }
}
