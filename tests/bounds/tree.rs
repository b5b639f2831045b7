//! The rules of the source tree, read from the sources: its shape, its ranks, its codes, and where `unsafe` and loom may
//! stand.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The modules by rank, the lowest first.
const RANKS: &[&str] = &[
    "platform",
    "error",
    "backpressure",
    "clock",
    "wake",
    "wheel",
    "observe",
    "executor",
    "engine",
    "scheduler",
];

/// The layers, the lowest first. They use the crate as a program outside of it would, and layers below them.
const LAYERS: &[&str] = &["job", "pool", "delay", "time", "future", "message_loop", "rx"];

/// What layers may use of the inside: the switch between std and loom, a fetch into the cache, what catches panics, impls
/// that are written by macros, instants as numbers, what passes on the delay that a box has chosen, a wait with a bound,
/// sleepers that wait for a deadline, spans, and what knows the threads of all pools. A crate outside would have its own.
/// `time` and `block_on` also ask which scheduler is in force on a thread. `Driver::block_on` says so, which is below them.
///
/// Everything else they use as a program outside would, with one exception: some methods of public types are `pub(crate)`
/// because a layer saves an allocation or a reading of the clock by them, such as `Scheduler::wake_at_since`. As hidden public
/// methods they would be promises to programs outside, which need none of them.
const FOR_LAYERS: &[&str] = &[
    "backpressure",
    "executor::deadlock",
    "observe::trace",
    "platform::cpu",
    "platform::impls",
    "platform::panics",
    "platform::sync",
    "scheduler::in_force",
    "scheduler::schedule_boxes_by_name",
    "clock::epoch",
    "clock::repeat::unboxed",
    "clock::tick",
    "clock::timeline",
    "wake",
    "wheel",
];

/// A file that uses the crate as a layer does.
const LIKE_A_LAYER: &str = "observe/metrics.rs";

/// Pages of words, and the crate's root, which names everything.
const WITHOUT_RANK: &[&str] = &["docs", "lib"];

/// Stand in for threads and for memory in a loom model, so `platform` and the slots name them.
const MODELS: &str = "models";

/// The most entries that `src/` may have. Beside the folders of the layers, and those that they stand on, there are what
/// all of them use: errors, back-pressure, who has to wake whom, and one task of a layer. Each lies at the top because it
/// belongs to none of its users.
const MOST_ENTRIES: usize = 19;

/// The files that have `unsafe` code, each with its reason at the module's declaration.
const WITH_UNSAFE: &[&str] = &[
    "engine/slots/blocks.rs",
    "engine/slots/closure.rs",
    "engine/slots/holder.rs",
    "engine/slots/task.rs",
    "platform/cpu.rs",
    "platform/pages/mod.rs",
    "platform/pages/plain.rs",
    "platform/pages/unix.rs",
    "platform/pages/windows.rs",
    "platform/sleep/apple.rs",
    "platform/sleep/linux.rs",
    "platform/sleep/windows.rs",
    "time/timeout.rs",
];

struct Source {
    /// Below `src/`, such as `engine/mod.rs`; or below the root, such as `tests/models/ends.rs`.
    path: String,
    text: String,
}

impl Source {
    /// The part of a line before a comment.
    fn code(&self) -> impl Iterator<Item = &str> {
        self.text.lines().map(|line| line.split("//").next().unwrap_or_default())
    }

    fn module(&self) -> &str {
        self.path.split('/').next().unwrap_or_default().trim_end_matches(".rs")
    }

    /// What comes after each `crate::`, such as `engine::slots`.
    fn uses(&self) -> impl Iterator<Item = &str> {
        self.code().flat_map(|line| line.split("crate::").skip(1)).map(|rest| {
            let end = rest.find(|c: char| !(c.is_alphanumeric() || c == '_' || c == ':'));
            rest[..end.unwrap_or(rest.len())].trim_end_matches(':')
        })
    }
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn files(folder: &Path, into: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("the sources are here") {
        let path = entry.expect("readable").path();
        if path.is_dir() {
            files(&path, into);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            into.push(path);
        }
    }
}

fn read(folder: &str, relative_to: &str) -> Vec<Source> {
    let mut paths = Vec::new();
    files(&root().join(folder), &mut paths);
    paths.sort();
    let source = |path: PathBuf| {
        let text = fs::read_to_string(&path).expect("readable");
        let path = path.strip_prefix(root().join(relative_to)).expect("below the root");
        // The rules name files with `/`, on each system.
        let names: Vec<_> = path.iter().map(|name| name.to_str().expect("plain names")).collect();
        Source { path: names.join("/"), text }
    };
    paths.into_iter().map(source).collect()
}

fn sources() -> Vec<Source> {
    let sources = read("src", "src");
    assert!(sources.len() > 50, "it has read the sources");
    sources
}

fn rank_of(module: &str) -> Option<usize> {
    RANKS.iter().position(|rank| *rank == module)
}

#[test]
fn the_tree_is_a_table_of_contents() {
    let entries = fs::read_dir(root().join("src")).expect("the sources are here").count();
    assert!(entries <= MOST_ENTRIES, "{entries} entries in src/, more than {MOST_ENTRIES}");
    for source in sources() {
        let folder = root().join("src").join(source.path.trim_end_matches(".rs"));
        assert!(!folder.is_dir(), "{} stands beside its folder: call it mod.rs", source.path);
    }
}

/// The files of the engine by rank, the lowest first: each uses only those before it.
const ENGINE: &[&str] = &[
    "bounds",
    "slots::state",
    "slots::closure",
    "slots::holder",
    "slots::blocks",
    "slots::depot",
    "slots::magazines",
    "slots::task",
    "slots::deadline",
    "slots::trim",
    "slots",
    "intake::lane",
    "intake",
    "intake::reader",
    "this_thread",
    "termination",
    "shared",
    "admit",
    "handles",
    "run",
    "ready",
    "retries",
    "engine",
    "dispatch",
    "next_wakeup",
    "shutdown",
    "tick_thread",
];

/// A person who reads a file of the engine knows all that it uses, if they have read those before it.
#[test]
fn no_circle_is_among_the_files_of_the_engine() {
    let rank_of = |path: &str| ENGINE.iter().position(|file| *file == path);
    let mut ranked = 0;
    for source in sources() {
        let Some(path) = source.path.strip_prefix("engine/") else { continue };
        let path = path.trim_end_matches(".rs").trim_end_matches("/mod").replace('/', "::");
        let path = if path == "mod" { "engine" } else { &path };
        let rank = rank_of(path).unwrap_or_else(|| panic!("{path} has no rank"));
        ranked += 1;
        let until = source
            .text
            .find("\n#[cfg(all(test")
            .or_else(|| source.text.find("\n#[cfg(test)]\nmod"));
        let used = uses_of_the_engine(path, &source.text[..until.unwrap_or(source.text.len())]);
        for used in used {
            let used = ENGINE.iter().rev().filter(|file| {
                used == **file
                    || used.strip_prefix(**file).is_some_and(|rest| rest.starts_with("::"))
            });
            let Some(used) = used.max_by_key(|file| file.len()) else { continue };
            let is_lower = *used == path || rank_of(used) < Some(rank);
            assert!(is_lower, "engine/{path} uses {used}, which comes after it");
        }
    }
    assert_eq!(ranked, ENGINE.len(), "each file has a rank");
}

/// Returns what the `use`s of a file of the engine name there, from the folder of the engine on.
fn uses_of_the_engine(path: &str, text: &str) -> Vec<String> {
    let folder = match path.rsplit_once("::") {
        Some((folder, _)) => format!("{folder}::"),
        None => String::new(),
    };
    let is_folder = ["slots", "intake", "engine"].contains(&path);
    let mut used = Vec::new();
    for statement in text.split(';').filter_map(|part| part.rsplit_once("use ")) {
        let name: String = statement.1.split_whitespace().collect();
        let all = match name.split_once('{') {
            None => vec![name],
            Some((start, rest)) => rest
                .split([',', '{', '}'])
                .filter(|end| !end.is_empty())
                .map(|end| format!("{start}{end}"))
                .collect(),
        };
        let relative = |name: String| {
            if let Some(rest) = name.strip_prefix("crate::engine::") {
                Some(rest.to_owned())
            } else if let Some(rest) = name.strip_prefix("super::") {
                let rest = rest.trim_end_matches("::self");
                Some(format!("{}{rest}", if is_folder { "" } else { &folder }))
            } else {
                let rest = name.strip_prefix("self::")?;
                Some(if path == "engine" { rest.to_owned() } else { format!("{path}::{rest}") })
            }
        };
        // What the folder itself names, such as `Engine`, is in its first file.
        let known = |name: String| {
            let is_of_root = !name.contains("::") && name.starts_with(char::is_uppercase);
            if is_of_root { String::from("engine") } else { name }
        };
        used.extend(all.into_iter().filter_map(relative).map(known));
    }
    used
}

#[test]
fn every_file_uses_only_lower_ranks() {
    let mut seen = BTreeSet::new();
    for source in sources() {
        let module = source.module();
        if WITHOUT_RANK.contains(&module) {
            continue;
        }
        let layer = LAYERS.iter().position(|layer| *layer == module);
        let is_layer = layer.is_some() || source.path == LIKE_A_LAYER;
        let rank = rank_of(module);
        assert!(is_layer || rank.is_some(), "{module} has no rank");
        seen.insert(module.to_owned());
        for used in source.uses() {
            let used_module = used.split("::").next().unwrap_or_default();
            if used_module == module || used_module == MODELS || used.is_empty() {
                continue;
            }
            let is_allowed = if is_layer {
                let is_public = used_module.starts_with(char::is_uppercase);
                let is_below = LAYERS.iter().position(|layer| *layer == used_module) < layer
                    && LAYERS.contains(&used_module);
                is_public || is_below || FOR_LAYERS.iter().any(|allowed| used.starts_with(allowed))
            } else {
                rank_of(used_module) < rank && rank_of(used_module).is_some()
            };
            assert!(is_allowed, "{} uses `crate::{used}`, which is not below it", source.path);
        }
    }
    let expected = RANKS.len() + LAYERS.len();
    assert_eq!(seen.len(), expected, "all have files: {seen:?}");
}

#[test]
fn unsafe_code_is_where_it_belongs() {
    let sources = sources();
    let has_unsafe = |source: &&Source| source.code().any(|line| line.contains("unsafe "));
    let with_unsafe: Vec<_> = sources.iter().filter(has_unsafe).map(|file| &file.path).collect();
    assert_eq!(with_unsafe, WITH_UNSAFE);
}

/// Elsewhere only unit tests that have no model say that they do not run in one.
#[test]
fn only_the_platform_knows_of_loom() {
    for source in sources() {
        if source.module() == "platform" || source.path == "lib.rs" {
            continue;
        }
        for line in source.code().filter(|line| line.contains("loom")) {
            assert_eq!(line.trim(), "#[cfg(all(test, not(loom)))]", "in {}", source.path);
        }
    }
}

/// `S20`, `LANE-3`: promises have a letter and a number, invariants a word and a number.
fn codes(text: &str) -> impl Iterator<Item = &str> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    text.split(move |c| !is_part(c)).filter(|word| {
        let (name, number) = word.split_once('-').unwrap_or(("", ""));
        let is_name = name.len() > 1 && name.chars().all(|c| c.is_ascii_uppercase());
        is_name && (1..=2).contains(&number.len()) && number.chars().all(|c| c.is_ascii_digit())
    })
}

/// Invariants are defined in the opening of a file or of a type, as `- LANE-3 The high bit ...`.
fn defined_in(line: &str) -> Option<&str> {
    let words = line.trim_start().trim_start_matches('/').trim_start_matches('!');
    let item = words.strip_prefix(" - ").filter(|_| line.trim_start().starts_with("//"))?;
    let first = item.split(' ').next()?;
    codes(first).next().filter(|code| *code == first)
}

/// The sources and the tests of both crates.
fn all_sources() -> Vec<Source> {
    let mut all = sources();
    for folder in [
        "tests",
        "durable/src",
        "durable/tests",
        "durable/cli/src",
        "durable/cli/tests",
        "durable/web/src",
        "durable/web/tests",
    ] {
        all.extend(read(folder, ""));
    }
    all
}

#[test]
fn an_invariant_has_one_definition_and_each_citation_finds_it() {
    let mut all = all_sources();
    let mut definitions = BTreeMap::new();
    for source in all.iter().filter(|source| source.path != "tests/bounds/tree.rs") {
        for code in source.text.lines().filter_map(defined_in) {
            let before = definitions.insert(code.to_owned(), source.path.clone());
            assert_eq!(before, None, "{code} is defined again in {}", source.path);
        }
    }
    assert!(definitions.len() > 50, "it has found the definitions");
    let mut cited = BTreeMap::new();
    let pages = ["README.md", "PROOF.md", "CONTRIBUTING.md", "SECURITY.md"];
    for page in pages.into_iter().chain(["scripts/litmus.py", "scripts/mutations.py"]) {
        let text = fs::read_to_string(root().join(page)).unwrap_or_default();
        all.push(Source { path: page.to_owned(), text });
    }
    for source in all.iter().filter(|source| source.path != "tests/bounds/tree.rs") {
        for code in codes(&source.text).filter(|code| !["UTF-8", "MPL-2"].contains(code)) {
            assert!(
                definitions.contains_key(code),
                "{} cites {code}: it has no definition",
                source.path
            );
            *cited.entry(code.to_owned()).or_insert(0) += 1;
        }
    }
    let unused: Vec<_> = definitions.keys().filter(|code| cited[*code] == 1).collect();
    assert!(unused.is_empty(), "defined and cited nowhere: {unused:?}");
}

/// `s08_...` names a test that proves S8, so `cargo test s08` runs all of them.
#[test]
fn names_of_tests_have_one_form() {
    let all = all_sources();
    for source in &all {
        for line in source.code().filter_map(|line| line.trim_start().strip_prefix("fn s")) {
            let number = line.split('_').next().unwrap_or_default();
            let is_number = !number.is_empty() && number.chars().all(|c| c.is_ascii_digit());
            assert!(
                !is_number || number.len() == 2,
                "{}: `fn s{line}`: use two digits",
                source.path
            );
        }
    }
}
