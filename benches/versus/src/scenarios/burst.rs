//! A million timers in random order, driven to the end; and what is left of their memory.

use super::{Random, Values};
use crate::herd::{Herd, Next};
use crate::peers::Peer;
use crate::sys;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

/// Insert, drive, drop: CPU, allocations and bytes of each timer.
pub fn run<P: Peer>(n: usize, spread: Duration) -> Values {
    P::block_on(async move {
        let mut random = Random::new();
        let live = sys::live_bytes();
        // Churn first: nobody's free list is in order in a program that has run for a while.
        {
            let mut herd = Herd::new(n / 4);
            let mut order: Vec<usize> = (0..n / 4).collect();
            for i in 0..order.len() {
                herd.add(P::sleep(Duration::from_secs(10), Duration::ZERO));
                order.swap(i, random.between(0, i as u64 + 1) as usize);
            }
            for i in order {
                herd.drop_one(i);
            }
        }
        let mut herd = Herd::new(n);
        // The sleeps' own storage, and the list of the woken, are the harness's: there before, for all.
        herd.touch();
        let harness = herd.bytes();
        let resident = sys::resident();
        let (allocations, cpu) = (sys::allocations(), sys::process_cpu());
        for _ in 0..n {
            let d = Duration::from_nanos(random.between(1, spread.as_nanos() as u64));
            herd.add(P::sleep(d, Duration::ZERO));
        }
        let inserted = sys::process_cpu();
        let allocations = sys::allocations() - allocations;
        let (heap, grown) = (sys::live_bytes() - live - harness, sys::resident() - resident);
        poll_fn(|cx| match herd.poll(cx, |_| Next::Done, |d, s| P::sleep(d, s)) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        })
        .await;
        let driven = sys::process_cpu();
        herd.clear();
        let end = sys::process_cpu();
        drop(herd);
        let floor = floor(n, &mut random).await;
        let n = n as f64;
        vec![
            ("cpu_ns", (end - cpu) / n),
            ("floor_ns", floor),
            ("insert_ns", (inserted - cpu) / n),
            ("drive_ns", (driven - inserted) / n),
            ("drop_ns", (end - driven) / n),
            ("allocations", allocations as f64 / n),
            ("heap_bytes", heap / n),
            ("resident_bytes", grown / n),
        ]
    })
}

/// A future of a sleep's size that has no timer: it reads the clock once, as making a sleep does.
struct Bare {
    polled: bool,
    _size: [u64; 7],
}

impl Future for Bare {
    type Output = ();
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if std::mem::replace(&mut self.polled, true) {
            return Poll::Ready(());
        }
        std::hint::black_box(std::time::Instant::now());
        drop(std::hint::black_box(cx.waker().clone()));
        Poll::Pending
    }
}

/// What the same costs without any timer: making, waking in random order and dropping `n` futures.
async fn floor(n: usize, random: &mut Random) -> f64 {
    let mut herd = Herd::new(n);
    herd.touch();
    let mut order: Vec<usize> = (0..n).collect();
    for i in 0..n {
        order.swap(i, random.between(0, i as u64 + 1) as usize);
    }
    let cpu = sys::process_cpu();
    for _ in 0..n {
        herd.add(Bare { polled: false, _size: [0; 7] });
    }
    let mut wakers = order.into_iter().map(crate::herd::waker);
    poll_fn(|cx| {
        // As many at a time as a turn fires.
        wakers.by_ref().take(256).for_each(std::task::Waker::wake);
        match herd.poll(cx, |_| Next::Done, |_, _| unreachable!("nothing follows")) {
            true => Poll::Ready(()),
            false => {
                cx.waker().wake_by_ref();
                Poll::Pending
            }
        }
    })
    .await;
    herd.clear();
    (sys::process_cpu() - cpu) / n as f64
}

/// A million far timers, all but every `keep`-th (0: all) dropped in random order: per cent of the
/// memory that came with them and went back.
pub fn returned<P: Peer>(n: usize, keep: usize) -> Values {
    P::block_on(async move {
        let mut random = Random::new();
        let mut herd = Herd::new(n);
        herd.touch();
        let mut order: Vec<usize> = (0..n).collect();
        for i in 0..n {
            order.swap(i, random.between(0, i as u64 + 1) as usize);
        }
        // A driver that has been in use; then the sleeps' own storage is there, and only the rest counts.
        P::sleep(Duration::from_millis(1), Duration::ZERO).await;
        sys::trim();
        let before = sys::resident();
        for _ in 0..n {
            let ms = random.between(3_600_000, 7_200_000);
            herd.add(P::sleep(Duration::from_millis(ms), Duration::ZERO));
        }
        let peak = sys::resident();
        let kept = n.checked_div(keep).unwrap_or(0);
        for i in &order[kept..] {
            herd.drop_one(*i);
        }
        P::reap();
        sys::trim();
        let after = sys::resident();
        vec![
            ("returned_percent", 100.0 * (peak - after) / (peak - before)),
            ("peak_bytes", (peak - before) / n as f64),
        ]
    })
}

/// The longest turn while a million timers cascade, and the longest insert into the same shard meanwhile.
/// Of this crate alone: it is about its own lock.
pub fn stall(n: usize) -> Values {
    let mut driver = slackwheel::Driver::new().expect("a driver");
    let handle = driver.handle();
    let mut random = Random::new();
    let waker = super::counted_waker();
    let mut sleeps = Vec::with_capacity(n);
    for _ in 0..n {
        let d = Duration::from_nanos(random.between(400_000_000, 1_400_000_000));
        sleeps.push(handle.sleep(d));
        let last = sleeps.last_mut().expect("just pushed");
        super::poll_once(std::pin::Pin::new(last), &waker);
    }
    let shards = std::thread::available_parallelism().map_or(1, usize::from).next_power_of_two();
    // Threads take the shards in turn: the next one that gets this thread's shard.
    for _ in 1..shards.max(2) {
        let handle = driver.handle();
        let poll = move || {
            super::poll_and_drop(handle.sleep(Duration::from_secs(1)), &super::counted_waker())
        };
        std::thread::spawn(poll).join().expect("it does not panic");
    }
    let stop = AtomicBool::new(false);
    let (longest_turn, stall) = std::thread::scope(|s| {
        let inserts = s.spawn(|| {
            let waker = super::counted_waker();
            // The long ones, as `(from, to)`.
            let mut stalls = Vec::new();
            while !stop.load(Ordering::Relaxed) {
                let (aside, start) = (sys::pushed_aside(), sys::monotonic());
                super::poll_and_drop(handle.sleep(Duration::from_secs(9)), &waker);
                let end = sys::monotonic();
                // A thread that was pushed aside by another program did not wait for the lock.
                if end - start > 5_000 && sys::pushed_aside() == aside {
                    stalls.push((start, end));
                }
            }
            stalls
        });
        let mut longest = 0;
        // Turns during which this thread was pushed aside: whoever waited then waited for the system.
        let mut disturbed = Vec::new();
        let end = sys::monotonic() + 1_500_000_000;
        while sys::monotonic() < end {
            let (aside, start) = (sys::pushed_aside(), sys::monotonic());
            let _ = driver.turn();
            let now = sys::monotonic();
            if sys::pushed_aside() == aside {
                longest = longest.max(now - start);
            } else {
                disturbed.push((start, now));
            }
        }
        stop.store(true, Ordering::Relaxed);
        let mut stalls = inserts.join().expect("it does not panic");
        stalls.retain(|s| !disturbed.iter().any(|d| s.0 < d.1 && d.0 < s.1));
        (longest, stalls.iter().map(|s| s.1 - s.0).max().unwrap_or(0))
    });
    vec![("longest_turn_ms", longest_turn as f64 / 1e6), ("longest_stall_ms", stall as f64 / 1e6)]
}
