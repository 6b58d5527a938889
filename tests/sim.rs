//! The simulation.
#![cfg(not(loom))]

use slackwheel::sim::Sim;
use std::time::Duration;

#[test]
fn two_threads() {
    let sim = Sim::new();
    let main = sim.thread();
    let other = {
        let sim = sim.clone();
        let hold = sim.hold();
        std::thread::spawn(move || {
            let thread = sim.thread();
            drop(hold);
            thread.block_on(sim.handle().sleep(Duration::from_secs(3600)));
            eprintln!("other done");
            sim.elapsed()
        })
    };
    main.block_on(sim.handle().sleep(Duration::from_secs(1800)));
    eprintln!("main done {:?}", sim.elapsed());
    let waiting = main.idle();
    eprintln!("main idle {:?} {:?}", waiting, sim.elapsed());
    assert!(other.join().unwrap() >= Duration::from_secs(3600));
    drop(waiting);
}
