//! What an executor author writes without a timer library: a locked map, or a heap with lazy deletion, on
//! a loop of epoll and timerfd.

use super::Peer;
use std::cell::RefCell;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

/// A timerfd in epoll: how the loops by hand wait, and the floor of every precise sleep.
pub struct BareLoop {
    epoll: i32,
    timer: i32,
}

impl BareLoop {
    pub fn new() -> Self {
        // SAFETY: plain calls that return descriptors; `event` lives through its call.
        unsafe {
            let epoll = libc::epoll_create1(libc::EPOLL_CLOEXEC);
            let timer = libc::timerfd_create(libc::CLOCK_MONOTONIC, libc::TFD_NONBLOCK);
            let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 0 };
            let rc = libc::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, timer, &mut event);
            assert!(epoll >= 0 && timer >= 0 && rc == 0, "no descriptors");
            BareLoop { epoll, timer }
        }
    }

    /// Sleeps until `at`, nanoseconds on the monotonic clock.
    pub fn wait_until(&self, at: u64) {
        let at = libc::timespec {
            tv_sec: (at / 1_000_000_000) as libc::time_t,
            tv_nsec: (at % 1_000_000_000).max(1) as libc::c_long,
        };
        let off = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        let set = libc::itimerspec { it_interval: off, it_value: at };
        let mut event = libc::epoll_event { events: 0, u64: 0 };
        let mut expirations = 0u64;
        // SAFETY: every pointer is to a live local of the size its call expects.
        unsafe {
            libc::timerfd_settime(self.timer, libc::TFD_TIMER_ABSTIME, &set, std::ptr::null_mut());
            libc::epoll_wait(self.epoll, &mut event, 1, -1);
            libc::read(self.timer, (&raw mut expirations).cast(), 8);
        }
    }
}

impl Drop for BareLoop {
    fn drop(&mut self) {
        // SAFETY: both descriptors are ours and are not used again.
        unsafe {
            libc::close(self.timer);
            libc::close(self.epoll);
        }
    }
}

struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The executor of both: all wakes come from this thread.
fn block_on<T>(
    future: impl Future<Output = T>,
    next: impl Fn() -> Option<Instant>,
    fire: impl Fn(Instant),
) -> T {
    let woken = Arc::new(Flag(AtomicBool::new(true)));
    let waker = Waker::from(woken.clone());
    let mut cx = Context::from_waker(&waker);
    let mut future = pin!(future);
    let wait = BareLoop::new();
    loop {
        while woken.0.swap(false, Ordering::Relaxed) {
            if let Poll::Ready(output) = future.as_mut().poll(&mut cx) {
                return output;
            }
        }
        let now = Instant::now();
        let next = next().expect("somebody is waiting");
        if next > now {
            wait.wait_until(crate::sys::monotonic() + (next - now).as_nanos() as u64);
        }
        fire(Instant::now());
    }
}

/// A `Mutex<BTreeMap<(Instant, id), Waker>>`.
pub struct Map;

static MAP: Mutex<BTreeMap<(Instant, u64), Waker>> = Mutex::new(BTreeMap::new());
static MAP_IDS: AtomicU64 = AtomicU64::new(0);

pub struct MapSleep {
    deadline: Instant,
    id: Option<u64>,
}

impl MapSleep {
    pub fn new(d: Duration) -> Self {
        MapSleep { deadline: Instant::now() + d, id: None }
    }
    /// Moves a registered sleep.
    pub fn reset(&mut self, deadline: Instant) {
        if let Some(id) = self.id {
            let mut map = MAP.lock().unwrap();
            if let Some(waker) = map.remove(&(self.deadline, id)) {
                map.insert((deadline, id), waker);
            }
        }
        self.deadline = deadline;
    }
    pub fn next_wake() -> Option<Instant> {
        MAP.lock().unwrap().keys().next().map(|k| k.0)
    }
}

impl Future for MapSleep {
    type Output = ();
    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if Instant::now() >= self.deadline {
            return Poll::Ready(());
        }
        let id = *self.id.get_or_insert_with(|| MAP_IDS.fetch_add(1, Ordering::Relaxed));
        let waker = cx.waker().clone();
        let old = MAP.lock().unwrap().insert((self.deadline, id), waker);
        drop(old);
        Poll::Pending
    }
}

impl Drop for MapSleep {
    #[inline]
    fn drop(&mut self) {
        if let Some(id) = self.id {
            let waker = MAP.lock().unwrap().remove(&(self.deadline, id));
            drop(waker);
        }
    }
}

impl Peer for Map {
    #[inline]
    fn sleep(d: Duration, _: Duration) -> impl Future<Output = ()> {
        MapSleep::new(d)
    }
    fn block_on<F: Future<Output = T> + 'static, T: Send + 'static>(future: F) -> T {
        block_on(future, MapSleep::next_wake, |now| {
            let due = {
                let mut map = MAP.lock().unwrap();
                let later = map.split_off(&(now, u64::MAX));
                std::mem::replace(&mut *map, later)
            };
            due.into_values().for_each(Waker::wake);
        })
    }
}

/// A binary heap; what was dropped stays in it until it comes up, or until half of the heap is such.
pub struct Heap;

#[derive(Default)]
struct HeapState {
    heap: BinaryHeap<Reverse<(Instant, u32, u32)>>,
    /// By index: generation and waker.
    wakers: Vec<(u32, Option<Waker>)>,
    free: Vec<u32>,
    dead: usize,
}

thread_local! {
    static HEAP: RefCell<HeapState> = RefCell::default();
}

pub struct HeapSleep {
    deadline: Instant,
    id: Option<(u32, u32)>,
}

impl HeapSleep {
    pub fn new(d: Duration) -> Self {
        HeapSleep { deadline: Instant::now() + d, id: None }
    }
    /// Moves a registered sleep: a new heap entry, the old one is dead.
    pub fn reset(&mut self, deadline: Instant) {
        self.deadline = deadline;
        if let Some((index, generation)) = &mut self.id {
            HEAP.with_borrow_mut(|h| {
                *generation += 1;
                h.wakers[*index as usize].0 = *generation;
                h.heap.push(Reverse((deadline, *index, *generation)));
                h.dead += 1;
                h.compact();
            });
        }
    }
    pub fn next_wake() -> Option<Instant> {
        HEAP.with_borrow_mut(|h| {
            while let Some(Reverse((at, index, generation))) = h.heap.peek().copied() {
                if h.wakers[index as usize].0 == generation {
                    return Some(at);
                }
                h.heap.pop();
                h.dead = h.dead.saturating_sub(1);
            }
            None
        })
    }
}

impl HeapState {
    fn compact(&mut self) {
        if self.dead > 64 && self.dead > self.heap.len() / 2 {
            let wakers = &self.wakers;
            self.heap.retain(|Reverse((_, i, g))| wakers[*i as usize].0 == *g);
            self.dead = 0;
        }
    }
}

impl Future for HeapSleep {
    type Output = ();
    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if Instant::now() >= self.deadline {
            return Poll::Ready(());
        }
        let waker = cx.waker().clone();
        let deadline = self.deadline;
        let known = self.id;
        self.id = Some(HEAP.with_borrow_mut(|h| {
            if let Some((index, generation)) = known {
                h.wakers[index as usize].1 = Some(waker);
                return (index, generation);
            }
            let index = h.free.pop().unwrap_or_else(|| {
                h.wakers.push((0, None));
                h.wakers.len() as u32 - 1
            });
            let slot = &mut h.wakers[index as usize];
            slot.1 = Some(waker);
            let generation = slot.0;
            h.heap.push(Reverse((deadline, index, generation)));
            (index, generation)
        }));
        Poll::Pending
    }
}

impl Drop for HeapSleep {
    #[inline]
    fn drop(&mut self) {
        if let Some((index, _)) = self.id {
            let waker = HEAP.with_borrow_mut(|h| {
                let slot = &mut h.wakers[index as usize];
                slot.0 += 1;
                let waker = slot.1.take();
                h.free.push(index);
                h.dead += waker.is_some() as usize;
                h.compact();
                waker
            });
            drop(waker);
        }
    }
}

impl Peer for Heap {
    #[inline]
    fn sleep(d: Duration, _: Duration) -> impl Future<Output = ()> {
        HeapSleep::new(d)
    }
    fn block_on<F: Future<Output = T> + 'static, T: Send + 'static>(future: F) -> T {
        block_on(future, HeapSleep::next_wake, |now| {
            while let Some(waker) = HEAP.with_borrow_mut(|h| {
                loop {
                    let Reverse((at, index, generation)) = h.heap.peek().copied()?;
                    if at > now {
                        return None;
                    }
                    h.heap.pop();
                    let slot = &mut h.wakers[index as usize];
                    if slot.0 == generation {
                        return slot.1.take();
                    }
                    h.dead = h.dead.saturating_sub(1);
                }
            }) {
                waker.wake();
            }
        })
    }
}
