//! Forks and execs under load. A test binary of its own: it counts the process's descriptors.
#![cfg(target_os = "linux")]

mod linux;

use linux::*;
use slackwheel::{Driver, Sleep};
use std::future::Future;
use std::pin::Pin;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Waker};
use std::thread;
use std::time::{Duration, Instant};

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

fn poll_once(sleep: &mut Sleep) -> bool {
    Pin::new(sleep).poll(&mut Context::from_waker(Waker::noop())).is_ready()
}

/// Whether the sleep ends on some executor, and not early.
fn lasts(d: Duration) -> bool {
    let start = Instant::now();
    futures::executor::block_on(slackwheel::sleep(d));
    start.elapsed() >= d
}

/// The descriptors a process has after exec, as a list.
fn descriptors_after_exec() -> String {
    let output = Command::new("ls").args(["-l", "/proc/self/fd"]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.lines().filter(|l| l.contains("->")).map(|l| l.split("->").nth(1).unwrap()).collect()
}

#[test]
fn c105_forks_and_execs_leave_the_parents_timers_alone() {
    assert!(lasts(ms(1)));
    let driver = Driver::new().unwrap();
    let _external = Driver::builder().external().unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let created = Arc::new(AtomicUsize::new(0));
    let churners: Vec<_> = (0..2)
        .map(|i| {
            let (stop, created, handle) = (stop.clone(), created.clone(), driver.handle());
            thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    let mut sleep =
                        if i == 0 { handle.sleep(ms(500)) } else { slackwheel::sleep(ms(500)) };
                    poll_once(&mut sleep);
                    created.fetch_add(1, Ordering::Relaxed);
                }
            })
        })
        .collect();
    let pending = thread::spawn(|| lasts(ms(200)));
    let before = std::fs::read_dir("/proc/self/fd").unwrap().count();
    for i in 0..100 {
        // A plain fork on every other turn, with the locks in whatever state they are.
        if i % 2 == 0 {
            let code = in_child(|| {
                let argv = [c"/bin/true".as_ptr(), std::ptr::null()];
                // SAFETY: a null-terminated list of strings; replaces the child or fails.
                unsafe { libc::execv(argv[0], argv.as_ptr()) };
                1
            });
            assert_eq!(code, 0);
        } else {
            assert!(Command::new("/bin/true").status().unwrap().success());
        }
    }
    assert_eq!(std::fs::read_dir("/proc/self/fd").unwrap().count(), before);
    for kind in ["timerfd", "eventpoll", "eventfd"] {
        let list = descriptors_after_exec();
        assert!(!list.contains(kind), "a {kind} survives exec: {list}");
    }
    assert!(pending.join().unwrap());
    stop.store(true, Ordering::Relaxed);
    churners.into_iter().for_each(|t| t.join().unwrap());
    assert!(created.load(Ordering::Relaxed) > 100);
    assert_eq!(driver.handle().metrics().unwrap().pending, 0);
}
