use std::sync::{Condvar, Mutex};
use std::time::{Duration, Instant};
fn pin(cpu: usize) {
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set);
    }
}
const N: u32 = 5000;
macro_rules! pp {
    ($lock:expr, $wait:expr, $notify:expr, $under:expr) => {{
        let turn_fn = |me: bool| {
            pin(0);
            for _ in 0..N {
                let mut g = $lock();
                while *g != me {
                    g = $wait(g);
                }
                *g = !me;
                if $under {
                    $notify();
                    drop(g);
                } else {
                    drop(g);
                    $notify();
                }
            }
        };
        let t = Instant::now();
        std::thread::scope(|s| {
            s.spawn(|| turn_fn(true));
            turn_fn(false);
        });
        t.elapsed().as_nanos() as f64 / N as f64
    }};
}
fn main() {
    let long = Duration::from_secs(10);
    for _ in 0..6 {
        for under in [true, false] {
            let m = Mutex::new(false);
            let c = Condvar::new();
            let a = pp!(|| m.lock().unwrap(), |g| c.wait(g).unwrap(), || c.notify_one(), under);
            let a2 = pp!(
                || m.lock().unwrap(),
                |g| c.wait_timeout(g, long).unwrap().0,
                || c.notify_one(),
                under
            );
            let m = parking_lot::Mutex::new(false);
            let c = parking_lot::Condvar::new();
            let b = pp!(
                || m.lock(),
                |mut g| {
                    c.wait(&mut g);
                    g
                },
                || c.notify_one(),
                under
            );
            let b2 = pp!(
                || m.lock(),
                |mut g| {
                    c.wait_for(&mut g, long);
                    g
                },
                || c.notify_one(),
                under
            );
            let m = Mutex::new(false);
            let c = slackwheel::sync::blocking::Condvar::new();
            let o = pp!(|| m.lock().unwrap(), |g| c.wait(&m, g).unwrap(), || c.notify_one(), under);
            let o2 = pp!(
                || m.lock().unwrap(),
                |g| c.wait_for(&m, g, long, Duration::ZERO).unwrap().0,
                || c.notify_one(),
                under
            );
            println!("under={under} std {a:.0}/{a2:.0} pl {b:.0}/{b2:.0} ours {o:.0}/{o2:.0}");
        }
    }
    let t = Instant::now();
    for _ in 0..100000 {
        unsafe {
            libc::syscall(libc::SYS_prctl, libc::PR_SET_TIMERSLACK, 50000, 0, 0, 0);
        }
    }
    println!("prctl {} ns", t.elapsed().as_nanos() / 100000);
}
