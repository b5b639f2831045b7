//! The binaries of the examples, for tests that run them.

use std::collections::BTreeMap;
use std::env;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

/// Returns the binary of an example. It lies beside the folder of this test's own binary.
pub(crate) fn example(name: &'static str) -> PathBuf {
    static FOUND: Mutex<BTreeMap<&str, PathBuf>> = Mutex::new(BTreeMap::new());
    let mut found = FOUND.lock().unwrap_or_else(PoisonError::into_inner);
    found.entry(name).or_insert_with(|| find(name)).clone()
}

fn find(name: &str) -> PathBuf {
    let this = env::current_exe().expect("it has a path");
    let profile = this.ancestors().nth(2).expect("target/debug/deps/test");
    let binary = profile.join("examples").join(format!("{name}{}", env::consts::EXE_SUFFIX));
    if !is_fresh(&binary) {
        build(name, profile);
    }
    assert!(is_fresh(&binary), "{} is old: `cargo build --examples`", binary.display());
    binary
}

/// Returns true if the binary is newer than all of its sources, which cargo lists in a file beside it.
fn is_fresh(binary: &Path) -> bool {
    let changed = |file: &Path| fs::metadata(file).and_then(|file| file.modified()).ok();
    let is_older = |file: &Path, built: SystemTime| changed(file).is_some_and(|time| time <= built);
    let (Some(built), Ok(sources)) =
        (changed(binary), fs::read_to_string(binary.with_extension("d")))
    else {
        return false;
    };
    let sources = sources.split_once(": ").map_or("", |(_, sources)| sources).replace("\\ ", "\0");
    sources.split_whitespace().all(|file| is_older(Path::new(&file.replace('\0', " ")), built))
}

/// Builds the example if it is missing or old. `cargo test` builds all examples, and `cargo test --test one` does not.
fn build(name: &str, profile: &Path) {
    let name_of_profile = match profile.file_name().and_then(OsStr::to_str) {
        Some("debug") | None => "dev",
        Some(profile) => profile,
    };
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(["build", "--quiet", "--example", name, "--profile", name_of_profile]);
    cargo.arg("--target-dir").arg(profile.parent().expect("a target folder"));
    let built = cargo.current_dir(env!("CARGO_MANIFEST_DIR")).status().expect("cargo runs");
    assert!(built.success(), "the example does not build");
}
