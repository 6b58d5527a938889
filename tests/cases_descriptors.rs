//! The case that counts this process's descriptors: alone in its program, so that no other test opens any.
#![cfg(not(loom))]

mod cases_util;

use cases_util::*;
use slackwheel::*;
use std::task::Waker;

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

#[test]
fn c115_what_is_not_armed_keeps_no_driver_busy_and_no_descriptor_open() {
    let before = descriptors();
    for _ in 0..20 {
        let mut driver = Driver::builder().external().unwrap();
        let h = driver.handle();
        let mut s1 = h.sleep(ms(1));
        let mut s2 = h.sleep(secs(1));
        let mut s3 = h.sleep(secs(1));
        let mut iv = h.interval(secs(1));
        let mut q = DelayQueue::with_handle(h);
        assert!(peek(&mut s1).is_pending() && peek(&mut s2).is_pending());
        assert!(tick(&mut iv).is_ready() && tick(&mut iv).is_pending());
        let k = q.insert("x", secs(1));
        assert!(pop(&mut q, Waker::noop()).is_pending());
        assert!(!driver.is_idle());
        std::thread::sleep(ms(2));
        driver.turn();
        assert!(peek(&mut s1).is_ready());
        drop(s2);
        iv.stop();
        q.remove(&k);
        assert!(driver.is_idle(), "only what is armed counts");
        drop(driver);
        // Their driver has gone: they use the default one when polled.
        s3.reset_never();
        assert!(peek(&mut s3).is_pending() && tick(&mut iv).is_pending());
        let parking = Driver::new().unwrap();
        let portable = Driver::builder().parker(Parker::Mio).build().unwrap();
        assert!(descriptors() > before);
        drop((parking, portable));
    }
    assert_eq!(descriptors(), before);
}
