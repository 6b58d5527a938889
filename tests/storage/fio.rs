//! fio's nbd engine: verified writes, and the process killed in the middle of them.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::commands::{Place, Server, run, stats};

/// fio against a server; the caller adds the work.
pub(crate) fn fio(place: &Place, uri: &str) -> Command {
    let mut command = Command::new("fio");
    command.current_dir(&place.path).args(["--name=w", "--ioengine=nbd", "--thread=1"]);
    command.arg(format!("--uri={uri}"));
    command
}

/// Runs fio and returns the figures of its (grouped) job.
pub(crate) fn measure(command: &mut Command) -> serde_json::Value {
    let out = run(command.args(["--group_reporting=1", "--output-format=json"]));
    // fio prints "connected to NBD server" in front of the JSON.
    let start = out.find("{\n").unwrap_or_else(|| panic!("no JSON in {out}"));
    let report: serde_json::Value = serde_json::from_str(&out[start..]).unwrap();
    report["jobs"][0].clone()
}

#[test]
#[ignore = "needs fio; run by .ci/storage"]
fn verified_random_writes_with_fsync_are_clean() {
    for (jobs, size) in [(1, 32), (16, 4)] {
        let place = Place::new();
        let server = Server::ours(&place, "64m", "");
        let mut command = fio(&place, &server.uri());
        command.args(["--rw=randwrite", "--bs=8k", "--fsync=1", "--verify=crc32c"]);
        command.args(["--verify_fatal=1", &format!("--numjobs={jobs}")]);
        command.args([&format!("--size={size}m"), &format!("--offset_increment={size}m")]);
        let job = measure(&mut command);
        let (writes, reads) = (&job["write"]["total_ios"], &job["read"]["total_ios"]);
        println!(
            "{jobs} jobs: error {}, {writes} writes at {:.0}/s, {reads} verified, {} commits",
            job["error"],
            job["write"]["iops"].as_f64().unwrap(),
            stats(&place)["commits"],
        );
        assert_eq!(job["error"], 0);
        assert_eq!(writes, &serde_json::json!(jobs * size * 128));
        assert_eq!(reads, writes, "each write is verified");
    }
}

/// One job that stops by itself when the server dies, and remembers what was acknowledged.
fn writer(place: &Place, server: &Server, seed: u32, size: u32) -> Command {
    let mut command = fio(place, &server.uri());
    command.args(["--rw=randwrite", "--bs=8k", "--verify=crc32c", "--randseed"]);
    command.arg(seed.to_string()).arg(format!("--size={size}m"));
    command
}

fn writing(place: &Place, server: &Server, seed: u32, size: u32) -> Child {
    let mut command = writer(place, server, seed, size);
    command.args(["--fsync=1", "--do_verify=0", "--verify_state_save=1"]);
    command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

/// Verifies what the writer's state file says was acknowledged; returns how much that is.
fn verify(place: &Place, server: &Server, seed: u32, size: u32) -> u64 {
    let mut command = writer(place, server, seed, size);
    command.args(["--verify_only=1", "--verify_state_load=1", "--verify_fatal=1"]);
    let job = measure(&mut command);
    assert_eq!(job["error"], 0);
    job["read"]["total_ios"].as_u64().unwrap()
}

#[test]
#[ignore = "needs fio; run by .ci/storage"]
fn what_was_acknowledged_survives_a_kill() {
    let place = Place::new();
    let server = Server::ours(&place, "64m", ",sync=always");
    let mut child = writing(&place, &server, 7, 32);
    std::thread::sleep(Duration::from_millis(1_000));
    server.kill();
    child.wait().unwrap();
    let server = Server::ours(&place, "64m", ",sync=always");
    let verified = verify(&place, &server, 7, 32);
    println!("{verified} acknowledged writes verified after the kill");
    assert!(verified > 0, "the server was killed before it did anything");
}

/// This proves recovery, not durability: what the process had written the kernel still has.
#[test]
#[ignore = "needs fio; run by .ci/storage"]
fn fifty_kills_in_the_middle_of_writes() {
    let place = Place::new();
    // A small log, so that kills hit checkpoints as well.
    let options = ",log=1m,sync=always";
    let start = || {
        Server::ours_with(
            &place,
            "32m",
            options,
            &["--max-payload", "512k", "--max-in-flight", "1m"],
        )
    };
    let (mut total, mut smallest) = (0, u64::MAX);
    for round in 0..50u32 {
        let server = start();
        let mut child = writing(&place, &server, round, 32);
        // From the first writes to well into the run, never at the same point.
        let deadline = Instant::now() + Duration::from_secs(20);
        while stats(&place)["records"].as_u64().unwrap() < 20 {
            assert!(Instant::now() < deadline, "fio does not write");
            std::thread::sleep(Duration::from_millis(2));
        }
        std::thread::sleep(Duration::from_millis(u64::from(round * 37 % 250)));
        server.kill();
        child.wait().unwrap();
        let server = start();
        let verified = verify(&place, &server, round, 32);
        server.stop();
        total += verified;
        smallest = smallest.min(verified);
    }
    println!("50 kills: {total} acknowledged writes verified, at least {smallest} in a round");
    assert!(total > 1_000, "the kills came too early to mean anything");
}
