//! The control socket of a running server.

use std::process::Stdio;
use std::time::Duration;

use super::commands::{Place, Server, ctl, stats};
use super::fio::fio;

#[test]
#[ignore = "needs the server built beforehand; run by .ci/storage"]
fn a_bad_slack_is_an_error_and_keeps_the_old_one() {
    let place = Place::new();
    let _server = Server::ours(&place, "1m", "");
    assert_eq!(ctl(&place, &["set", "commit.slack_us", "250"]), Ok(String::new()));
    for bad in ["-1", "1001", "abc"] {
        let error = ctl(&place, &["set", "commit.slack_us", bad]).unwrap_err();
        println!("set commit.slack_us {bad}: {error}");
        assert!(error.contains("EINVAL") && error.contains("0..=1000"), "{error}");
        assert!(error.contains(bad), "{error}");
        assert_eq!(ctl(&place, &["get", "commit.slack_us"]), Ok("250".to_string()));
    }
    assert_eq!(ctl(&place, &["set", "commit.slack_us", "0x10"]), Ok(String::new()));
    assert_eq!(ctl(&place, &["get", "commit.slack_us"]), Ok("16".to_string()));
    assert!(ctl(&place, &["get", "commit.nothing"]).is_err());
}

#[test]
#[ignore = "needs fio; run by .ci/storage"]
fn a_change_of_the_slack_acts_on_the_next_window() {
    let place = Place::new();
    // A model of a slow device, so that windows are long enough to see.
    let more = ["--device", "sim(lat=2ms,par=1)", "--set", "commit.policy=fixed"];
    let server = Server::ours_with(&place, "64m", ",sync=always", &more);
    let mut command = fio(&place, &server.uri());
    command.args(["--rw=randwrite", "--bs=8k", "--size=64m", "--time_based=1", "--runtime=6"]);
    let mut load = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    std::thread::sleep(Duration::from_millis(1_500));
    let late = || stats(&place)["window_lateness_p99_ns"].as_u64().unwrap();
    let windows = || stats(&place)["windows_ended_by_timer"].as_u64().unwrap();
    let (before, count) = (late(), windows());
    assert!(count > 50, "the windows end by their timer: {count}");
    ctl(&place, &["set", "commit.slack_us", "1000"]).unwrap();
    std::thread::sleep(Duration::from_millis(1_500));
    let after = late();
    println!("lateness p99 with slack = resolution {before} ns, then with 1000 us {after} ns");
    // With a slack of 1 ms some waits are as late as that; a machine's scheduling adds to both.
    assert!(after >= 1_000_000, "the new slack was not used");
    load.kill().unwrap();
    load.wait().unwrap();
}
