//! The crate's layers, held by reading its sources: imports go down (or sideways within a folder), and
//! what only one module may name is named nowhere else. The table is the design's.
#![cfg(not(loom))]

use std::fs;
use std::path::{Path, PathBuf};

/// Modules by layer, lowest first.
const LAYERS: &[&[&str]] = &[
    &["tick", "primitive"],
    &["window", "error", "tunables", "sys", "metrics", "trace"],
    &["wheel", "clock"],
    &["park"],
    &["driver"],
    // One layer of the design; within it, the others may use the futures.
    &["future"],
    &["sync", "thread", "sim"],
    &["time", "compat"],
];

/// What may be named in one module only.
const OWNED: &[(&str, &[&str])] = &[
    ("libc::", &["sys"]),
    ("loom::", &["primitive"]),
    ("Instant::now()", &["clock"]),
    ("std::sync::atomic", &["primitive"]),
    ("std::sync::Mutex", &["primitive"]),
];

fn sources(dir: &Path, out: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, out);
        } else if path.extension().is_some_and(|e| e == "rs") {
            out.push(path);
        }
    }
}

fn src() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src")
}

fn layer(module: &str) -> Option<usize> {
    LAYERS.iter().position(|l| l.contains(&module))
}

/// The top-level module a file belongs to.
fn module(path: &Path) -> String {
    let rel = path.strip_prefix(src()).unwrap();
    let first = rel.iter().next().unwrap().to_str().unwrap();
    first.trim_end_matches(".rs").to_owned()
}

/// The file's code: no comments, no docs, nothing from the first `#[cfg(..test..)] mod` on.
fn code(path: &Path) -> String {
    let text = fs::read_to_string(path).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    let end = lines
        .windows(2)
        .position(|w| w[0].starts_with("#[cfg(") && w[0].contains("test") && w[1] == "mod tests {")
        .unwrap_or(lines.len());
    let strip = |l: &&str| l.split("//").next().unwrap().to_owned();
    lines[..end].iter().map(strip).collect::<Vec<_>>().join("\n")
}

/// Top-level modules that a file imports through `crate::`, also in braces.
fn imports(code: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (at, _) in code.match_indices("crate::") {
        let rest = &code[at + "crate::".len()..];
        let names = match rest.strip_prefix('{') {
            Some(list) => list.split('}').next().unwrap().split(',').collect(),
            None => vec![rest],
        };
        for name in names {
            let word: String = name
                .trim_start()
                .chars()
                .take_while(|c| c.is_alphanumeric() || *c == '_')
                .collect();
            found.push(word);
        }
    }
    found
}

fn files() -> Vec<PathBuf> {
    let mut files = Vec::new();
    sources(&src(), &mut files);
    assert!(files.len() > 20, "the sources are not where they are looked for");
    files
}

#[test]
fn imports_go_only_down() {
    let mut wrong = Vec::new();
    for file in files() {
        let own = module(&file);
        if own == "lib" || own == "docs" {
            continue;
        }
        let Some(mine) = layer(&own) else {
            wrong.push(format!("{}: module `{own}` has no layer", file.display()));
            continue;
        };
        for import in imports(&code(&file)) {
            let Some(theirs) = layer(&import) else { continue };
            if theirs > mine || (theirs == mine && import != own && mine > 1) {
                wrong.push(format!("{} imports `{import}`", file.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn each_outside_thing_has_one_door() {
    let mut wrong = Vec::new();
    for file in files() {
        // Tests and models may use what they like.
        if ["races", "model"].contains(&file.file_stem().unwrap().to_str().unwrap()) {
            continue;
        }
        let own = module(&file);
        let code = code(&file);
        for (name, owners) in OWNED {
            if !owners.contains(&own.as_str()) && code.contains(name) {
                wrong.push(format!("{} names `{name}`", file.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn every_unsafe_site_is_argued() {
    let mut wrong = Vec::new();
    for file in files() {
        let text = fs::read_to_string(&file).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        for (n, line) in lines.iter().enumerate() {
            let code = line.split("//").next().unwrap();
            if !(code.contains("unsafe {") || code.contains("unsafe impl")) {
                continue;
            }
            // In the lines just above, past the statement's own first lines.
            let argued = lines[n.saturating_sub(8)..n].iter().any(|l| l.contains("SAFETY:"));
            if !argued {
                wrong.push(format!("{}:{}", file.display(), n + 1));
            }
        }
    }
    assert!(wrong.is_empty(), "no SAFETY comment at {wrong:#?}");
}

#[test]
fn no_file_is_much_over_600_lines() {
    for file in files() {
        let lines = fs::read_to_string(&file).unwrap().lines().count();
        assert!(lines <= 660, "{} has {lines} lines", file.display());
    }
}

#[test]
fn the_reader_of_sources_sees_what_is_wrong() {
    assert_eq!(
        imports("use crate::{park, driver::x};\ncrate::sys::f()"),
        ["park", "driver", "sys"]
    );
    assert!(layer("driver") > layer("wheel"));
}
