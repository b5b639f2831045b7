//! The house stands in layers: each file uses only files of a lower rank. Read from the sources.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// The modules by rank, the lowest first. Modules of one rank do not use each other; the files of one
/// module may.
const RANKS: &[&[&str]] = &[
    &["backpressure", "deadlock", "error", "sync", "system", "trace"],
    &["observe", "tick"],
    &["key"],
    &["executor", "limit", "parking", "stats", "wheel"],
    &["clock", "intake", "task"],
    &["end", "front", "repeat"],
    &["hub"],
    &["alarm", "handle"],
    &["leftovers"],
    &["engine"],
    &["driver", "ticker"],
    &["scheduler"],
    &["metrics", "schedule"],
];

/// What stands over all of that, on what is public alone: it names `crate::Scheduler`, never
/// `crate::scheduler`.
const OVER_THE_PUBLIC: &[&str] = &["future", "job", "message_loop", "pool", "rx"];

/// Words, and what stands above everything.
const ABOVE: &[&str] = &["coming_from", "design", "lib", "models", "shutdown"];

/// In a model it stands in for threads and for memory, so `sync` and `task` name it.
const STANDS_IN: &str = "models";

fn rank_of(module: &str) -> Option<usize> {
    RANKS.iter().position(|rank| rank.contains(&module))
}

fn sources(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("the sources are here") {
        let path = entry.expect("readable").path();
        if path.is_dir() {
            sources(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
}

/// The module of a file: the first part of its path.
fn module_of(file: &Path, root: &Path) -> String {
    let inside = file.strip_prefix(root).expect("under the root");
    let first = inside.components().next().expect("a path").as_os_str().to_string_lossy();
    first.trim_end_matches(".rs").to_owned()
}

/// The modules that a line of code names after `crate::`.
fn used_in(line: &str) -> impl Iterator<Item = &str> {
    let code = line.split("//").next().unwrap_or_default();
    code.split("crate::").skip(1).map(|rest| {
        let end = rest.find(|c: char| !(c.is_alphanumeric() || c == '_'));
        &rest[..end.unwrap_or(rest.len())]
    })
}

#[test]
fn every_file_uses_only_lower_ones() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    sources(&root, &mut files);
    let mut uses = 0;
    let mut seen = BTreeMap::new();
    for file in files {
        let module = module_of(&file, &root);
        if ABOVE.contains(&module.as_str()) {
            continue;
        }
        let text = fs::read_to_string(&file).expect("readable");
        if OVER_THE_PUBLIC.contains(&module.as_str()) {
            for inner in text.lines().flat_map(used_in).filter(|used| rank_of(used).is_some()) {
                // `sync` is the switch between std and loom, `backpressure` a wait with a bound: a crate
                // outside would have its own. `deadlock` sees the threads of all pools. And `job` has no rank: it is one of them.
                let is_allowed = ["backpressure", "deadlock", "sync", "wheel"].contains(&inner);
                assert!(is_allowed, "{} uses `crate::{inner}`, the inside", file.display());
            }
            continue;
        }
        let rank = rank_of(&module).unwrap_or_else(|| panic!("{module} has no rank"));
        seen.insert(module.clone(), rank);
        for line in text.lines() {
            for used in used_in(line).filter(|used| *used != module && *used != STANDS_IN) {
                // What is not a module is something that `lib.rs` re-exports: code inside uses
                // the module.
                let lower =
                    rank_of(used).unwrap_or_else(|| panic!("{module} uses `crate::{used}`"));
                assert!(
                    lower < rank,
                    "{} (rank {rank}) uses {used} (rank {lower})",
                    file.display()
                );
                uses += 1;
            }
        }
    }
    assert_eq!(seen.len(), RANKS.iter().map(|rank| rank.len()).sum::<usize>(), "all have files");
    assert!(uses > 50, "it has read the sources: {uses}");
}

#[test]
fn what_is_unsafe_is_where_it_belongs() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    sources(&root, &mut files);
    let mut with_unsafe: Vec<_> = files
        .iter()
        .filter(|file| {
            let text = fs::read_to_string(file).expect("readable");
            text.lines().any(|line| line.split("//").next().unwrap_or_default().contains("unsafe "))
        })
        .map(|file| file.strip_prefix(&root).expect("under the root").display().to_string())
        .collect();
    with_unsafe.sort();
    let expected = [
        "future/timeout.rs",
        "sync.rs",
        "system.rs",
        "task/closure.rs",
        "task/directory.rs",
        "task/holder.rs",
        "task/pages.rs",
    ];
    assert_eq!(with_unsafe, expected);
}
