//! What every parker promises, and what each of them is for: the kernel's slack, the lack of
//! descriptors, the environment's choice.
#![cfg(target_os = "linux")]

mod linux;

use linux::*;
use slackwheel::{Clock, Driver, Firing, Parker, Sleep};
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

fn us(n: u64) -> Duration {
    Duration::from_micros(n)
}

fn all_parkers() -> Vec<(Parker, Driver)> {
    [Parker::TimerFd, Parker::Pwait2, Parker::Futex, Parker::Mio]
        .into_iter()
        .map(|parker| {
            let driver = Driver::builder()
                .parker(parker)
                .clock(Clock::Boottime)
                .clock(Clock::Realtime)
                .build()
                .unwrap();
            (parker, driver)
        })
        .collect()
}

#[test]
fn no_parker_is_early_and_each_leaves_the_slack_as_it_was() {
    for own in [50_000, 77_000, 3_000_000] {
        thread::spawn(move || {
            set_slack(own);
            for (parker, mut driver) in all_parkers() {
                for i in 0..30 {
                    let (min, width) = (us(40 * i), us(137 * (i % 7)));
                    let start = Instant::now();
                    driver.block_on(driver.handle().sleep_range(min, min + width));
                    assert!(start.elapsed() >= min, "{parker:?}");
                    assert_eq!(slack(), own, "{parker:?}");
                    let _ = driver.park(Some(us(50)));
                    assert_eq!(slack(), own, "{parker:?}");
                }
                let m = driver.handle().metrics().unwrap();
                assert!(m.fired > 0 && m.timer_wakeups > 0, "{parker:?}: {m:?}");
            }
        })
        .join()
        .unwrap();
    }
}

/// Polls with a waker that does `f` when it is called.
fn with_waker(f: impl Fn() + Send + Sync + 'static) -> Waker {
    struct Do<F>(F);
    impl<F: Fn() + Send + Sync> Wake for Do<F> {
        fn wake(self: Arc<Self>) {
            self.0();
        }
    }
    Arc::new(Do(f)).into()
}

#[test]
fn a_waker_and_a_thread_it_spawns_see_the_callers_slack() {
    thread::spawn(|| {
        set_slack(77_000);
        for (parker, mut driver) in all_parkers() {
            let seen = Arc::new(Mutex::new(Vec::new()));
            let waker = with_waker({
                let seen = seen.clone();
                move || {
                    let here = slack();
                    let spawned = thread::spawn(slack).join().unwrap();
                    seen.lock().unwrap().extend([here, spawned]);
                }
            });
            let mut cx = Context::from_waker(&waker);
            let mut sleep = driver.handle().sleep_range(ms(5), ms(9));
            assert!(Pin::new(&mut sleep).poll(&mut cx).is_pending());
            while seen.lock().unwrap().is_empty() {
                let _ = driver.park(None);
            }
            assert_eq!(*seen.lock().unwrap(), [77_000, 77_000], "{parker:?}");
            // A waker that panics leaves it as it was, too.
            let waker = with_waker(|| panic!("a waker fails"));
            let mut cx = Context::from_waker(&waker);
            let mut sleep = driver.handle().sleep_range(ms(2), ms(3));
            assert!(Pin::new(&mut sleep).poll(&mut cx).is_pending());
            let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                loop {
                    let _ = driver.park(None);
                }
            }));
            assert!(panicked.is_err());
            assert_eq!(slack(), 77_000, "{parker:?}");
        }
    })
    .join()
    .unwrap();
}

#[test]
fn an_earlier_timer_from_another_thread_is_in_time() {
    for (parker, mut driver) in all_parkers() {
        let handle = driver.handle();
        let done = Arc::new(AtomicBool::new(false));
        let driving = thread::spawn({
            let done = done.clone();
            move || {
                let far = handle.sleep_range(Duration::from_secs(50), Duration::from_secs(60));
                let mut far = pin!(far);
                driver.block_on(poll_fn(|cx| {
                    assert!(far.as_mut().poll(cx).is_pending());
                    if done.load(Ordering::SeqCst) { Poll::Ready(()) } else { Poll::Pending }
                }));
                driver.handle().metrics().unwrap()
            }
        });
        for i in 0..20 {
            thread::sleep(ms(1));
            let (send, receive) = mpsc::channel();
            let waker = with_waker(move || {
                let _ = send.send(Instant::now());
            });
            let mut cx = Context::from_waker(&waker);
            // Wide windows, whose slack the kernel has, and narrow ones inside of them.
            let (min, max) = if i % 2 == 0 { (us(200), ms(30)) } else { (ms(1), ms(1)) };
            let start = Instant::now();
            let mut sleep = handle.sleep_range(min, max);
            assert!(Pin::new(&mut sleep).poll(&mut cx).is_pending());
            let rang = receive.recv_timeout(Duration::from_secs(5)).expect("nobody woke it");
            assert!(rang - start >= min, "{parker:?}");
        }
        done.store(true, Ordering::SeqCst);
        handle.unpark();
        let m = driving.join().unwrap();
        if parker != Parker::TimerFd {
            assert!(m.kick_calls > 0, "{parker:?}: {m:?}");
        }
    }
}

#[test]
fn a_driver_parked_by_pwait2_lends_its_window_to_the_kernel() {
    let stop = Arc::new(AtomicBool::new(false));
    let parked = thread::spawn({
        let stop = stop.clone();
        move || {
            let mut driver = Driver::builder().parker(Parker::Pwait2).build().unwrap();
            while !stop.load(Ordering::Relaxed) {
                driver.block_on(driver.handle().sleep_range(ms(1), ms(3)));
            }
            driver.handle().metrics().unwrap()
        }
    });
    let start = Instant::now();
    let mut seen = false;
    let mut readable = true;
    while !seen && readable && start.elapsed() < Duration::from_secs(20) {
        match std::fs::read_to_string("/proc/timer_list") {
            Ok(list) => seen = ranges(&list).any(|width| width == 2_000_000),
            Err(_) => readable = false,
        }
    }
    stop.store(true, Ordering::Relaxed);
    let m = parked.join().unwrap();
    assert!(m.fired > 0 && m.arm_calls == 0, "{m:?}");
    if !readable {
        eprintln!("skipped: /proc/timer_list is not readable here");
        return;
    }
    assert!(seen, "no timer of the kernel has the range [1 ms, 3 ms]");
}

/// The widths of the ranges in the kernel's list of timers ("# expires at SOFT-HARD nsecs").
fn ranges(list: &str) -> impl Iterator<Item = u64> {
    list.lines().filter_map(|line| {
        let range = line.trim().strip_prefix("# expires at ")?.split(' ').next()?;
        let (soft, hard) = range.split_once('-')?;
        hard.parse::<u64>().ok()?.checked_sub(soft.parse().ok()?)
    })
}

#[test]
fn a_narrow_window_far_ahead_does_not_overrun_under_pwait2() {
    // The kernel stretches an epoll timeout of 10 s by 10 ms; a timerfd not. Several at once: a busy
    // machine may keep one of them from its processor, the stretch would concern all.
    let (min, max) = (Duration::from_secs(10), Duration::from_millis(10_001));
    let waiters: Vec<_> = (0..6)
        .map(|_| {
            thread::spawn(move || {
                let mut driver = Driver::builder().parker(Parker::Pwait2).build().unwrap();
                let start = Instant::now();
                driver.block_on(driver.handle().sleep_range(min, max));
                let took = start.elapsed();
                assert!(took >= min);
                took.saturating_sub(max)
            })
        })
        .collect();
    let over: Vec<_> = waiters.into_iter().map(|w| w.join().unwrap()).collect();
    println!("over by {over:?}");
    assert!(over.iter().min().unwrap() < &ms(3), "over by {over:?}");
}

#[test]
fn pwait2_and_futex_fire_within_the_windows_of_all_that_is_pending() {
    for parker in [Parker::Pwait2, Parker::Futex] {
        for firing in [Firing::Latest, Firing::EarliestCommon, Firing::Aligned] {
            let mut driver = Driver::builder().parker(parker).firing(firing).build().unwrap();
            let handle = driver.handle();
            let mut sleeps: Vec<Sleep> =
                (0..40).map(|i| handle.sleep_range(ms(3 + i % 9), ms(8 + i % 9 + i % 5))).collect();
            let fired = AtomicU64::new(0);
            driver.block_on(poll_fn(|cx| {
                sleeps.retain_mut(|s| {
                    let ready = Pin::new(&mut *s).poll(cx).is_ready();
                    fired.fetch_add(ready as u64, Ordering::Relaxed);
                    !ready
                });
                if sleeps.is_empty() { Poll::Ready(()) } else { Poll::Pending }
            }));
            assert_eq!(fired.into_inner(), 40);
            let m = handle.metrics().unwrap();
            assert!(m.wakeups < 12, "{parker:?} {firing:?}: {} wakeups", m.wakeups);
        }
    }
}

#[test]
fn other_clocks_end_the_waits_of_every_parker_but_mio() {
    for (parker, mut driver) in all_parkers() {
        if parker == Parker::Mio {
            continue;
        }
        let handle = driver.handle();
        let start = Instant::now();
        let until = SystemTime::now() + ms(20);
        driver.block_on(async {
            let far = slackwheel::sleep(Duration::from_secs(60));
            let boot = handle.sleep_boottime_range(ms(10), ms(11));
            let wall = handle.sleep_until_system(until, ms(1));
            let both = async { futures::join!(boot, wall) };
            futures::future::select(pin!(far), pin!(both)).await;
        });
        assert!(SystemTime::now() >= until, "{parker:?}");
        assert!(start.elapsed() < Duration::from_secs(30), "{parker:?}");
    }
}

/// The soft limit of descriptors; only in a child.
fn limit_descriptors(n: u64) {
    let limit = libc::rlimit { rlim_cur: n, rlim_max: n };
    // SAFETY: `limit` lives through the call.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) }, 0);
}

#[test]
fn without_descriptors_the_builder_says_so_and_the_default_driver_works() {
    let code = in_child(|| {
        limit_descriptors(0);
        for parker in [Parker::Auto, Parker::TimerFd, Parker::Pwait2, Parker::Mio] {
            let Err(e) = Driver::builder().parker(parker).build() else { return 1 };
            if e.source.raw_os_error() != Some(libc::EMFILE)
                || !e.to_string().contains("cannot make")
            {
                return 2;
            }
        }
        if Driver::builder().external().is_ok() {
            return 3;
        }
        // A driver that needs none.
        let Ok(mut driver) = Driver::builder().parker(Parker::Futex).build() else { return 4 };
        let start = Instant::now();
        driver.block_on(driver.handle().sleep(ms(5)));
        if start.elapsed() < ms(5) {
            return 5;
        }
        drop(driver);
        // And the default driver, from any executor.
        let start = Instant::now();
        futures::executor::block_on(slackwheel::sleep(ms(5)));
        if start.elapsed() < ms(5) || start.elapsed() > Duration::from_secs(5) {
            return 6;
        }
        0
    });
    assert_eq!(code, 0);
}

#[test]
fn the_environment_chooses_for_drivers_that_were_not_told() {
    // Runs the test below in a process of its own with each name.
    let me = std::env::current_exe().unwrap();
    for (name, works) in [
        ("timerfd", true),
        ("pwait2", true),
        ("futex", true),
        ("mio", true),
        ("auto", true),
        ("sundial", false),
    ] {
        let status = std::process::Command::new(&me)
            .args(["--exact", "chosen_by_the_environment", "--test-threads=1"])
            .env("SLACKWHEEL_PARKER", name)
            .env("EXPECTED", if works { name } else { "" })
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::null())
            .status()
            .unwrap();
        assert!(status.success(), "{name}");
    }
}

#[test]
fn chosen_by_the_environment() {
    // Does something only when the test above runs it, in a process of its own.
    let Ok(expected) = std::env::var("EXPECTED") else { return };
    let before = descriptors();
    match Driver::new() {
        Ok(mut driver) => {
            assert!(!expected.is_empty());
            // A futex has no descriptor, the others have some.
            assert_eq!(descriptors() == before, expected == "futex");
            driver.block_on(driver.handle().sleep(ms(2)));
        }
        Err(e) => {
            assert!(expected.is_empty(), "{e}");
            assert!(e.to_string().contains("sundial"), "{e}");
        }
    }
    // The default driver works in any case.
    futures::executor::block_on(slackwheel::sleep(ms(2)));
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Makes the calling process live on an older or stricter system: no epoll_pwait2 (`ENOSYS`) and no
/// timer slack (`EINVAL`, as gVisor says). Only in a child; false where filters are not allowed.
fn live_on_an_older_system() -> bool {
    let load = |offset: u32| libc::sock_filter {
        code: (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16,
        jt: 0,
        jf: 0,
        k: offset,
    };
    let equal = |k: u32, jt: u8, jf: u8| libc::sock_filter {
        code: (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16,
        jt,
        jf,
        k,
    };
    let end =
        |k: u32| libc::sock_filter { code: (libc::BPF_RET | libc::BPF_K) as u16, jt: 0, jf: 0, k };
    // Offsets in `seccomp_data`: the call's number, and the lower half of its first argument.
    let mut filter = [
        load(0),
        equal(libc::SYS_epoll_pwait2 as u32, 5, 0),
        equal(libc::SYS_prctl as u32, 0, 3),
        load(16),
        equal(libc::PR_SET_TIMERSLACK as u32, 3, 0),
        equal(libc::PR_GET_TIMERSLACK as u32, 2, 0),
        end(libc::SECCOMP_RET_ALLOW),
        end(libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32),
        end(libc::SECCOMP_RET_ERRNO | libc::EINVAL as u32),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: the program and its filter live through the calls.
    unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &program) == 0
    }
}

#[test]
fn a_system_without_pwait2_and_without_slack_is_no_failure() {
    use slackwheel::thread::{SlackGuard, set_timer_slack, sleep_range, timer_slack};
    let code = in_child(|| {
        if !live_on_an_older_system() {
            return 77;
        }
        let unsupported = std::io::ErrorKind::Unsupported;
        if !timer_slack().is_err_and(|e| e.kind() == unsupported) {
            return 1;
        }
        if !set_timer_slack(ms(1)).is_err_and(|e| e.kind() == unsupported) {
            return 2;
        }
        let Ok(mut driver) = Driver::builder().parker(Parker::Pwait2).build() else { return 3 };
        let handle = driver.handle();
        for i in 1..20 {
            let start = monotonic();
            driver.block_on(handle.sleep_range(us(100 * i), us(100 * i) + ms(3)));
            if monotonic() - start < 100_000 * i {
                return 4;
            }
            // Bounded waits round up to milliseconds there.
            let start = monotonic();
            let _ = driver.park(Some(us(100)));
            if monotonic() - start < 100_000 {
                return 5;
            }
        }
        let start = monotonic();
        sleep_range(ms(2), ms(3));
        SlackGuard::with(ms(1), || sleep_range(us(50), us(60)));
        let (mutex, condvar) = (Mutex::new(()), slackwheel::sync::blocking::Condvar::new());
        drop(condvar.wait_for(&mutex, mutex.lock().unwrap(), ms(2), us(1)));
        if monotonic() - start < 4_000_000 {
            return 6;
        }
        0
    });
    if code == 77 {
        eprintln!("skipped: system call filters are not allowed here");
        return;
    }
    assert_eq!(code, 0);
}
