#!/usr/bin/env python3
"""Runs tokio's own tests of time on this crate's timers.

    ecosystem/tokio_tests.py                      with `tickwheel::time`: half a minute to build, and six seconds
    ecosystem/tokio_tests.py --with tokio::time   with tokio's own: it shows that the rewriting keeps the tests whole

The tests are those of the published packages `tokio`, `tokio-stream` and `tokio-util`, in the versions of our Cargo.lock,
or the newest if they are not in it. None of their text is kept here: each run takes it from where cargo has unpacked them,
exchanges `tokio::time` for `tickwheel::time`, and writes the result below target/tokio-tests. `tokio-stream` and
`tokio-util` themselves are exchanged in the same way. So their adapters, such as `StreamExt::timeout` and `DelayQueue`,
run on our timers as well.

A test stays as it is but for its attribute. `#[tokio::test]` would build a runtime without our hook, and would pause
tokio's clock, so each test is a plain function here that runs its body on a runtime of ours. What is left out has its
reason in `LEFT_OUT`. Everything else has to run and pass.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MADE = ROOT / "target" / "tokio-tests"
CARGO = os.environ.get("CARGO", "cargo")
MANIFEST_PATH = ["--manifest-path", str(MADE / "Cargo.toml")]

# The files of tests that are about time. `tokio-util` has no test of its `FutureExt::timeout`; it is compiled all the same.
FILES = {
    "tokio": ["test_clock", "time_interval", "time_pause", "time_sleep", "time_timeout"],
    "tokio-stream": ["chunks_timeout", "stream_chunks_timeout", "stream_timeout", "time_throttle"],
    "tokio-util": ["time_delay_queue"],
}
COPIED = ["tokio-stream", "tokio-util"]

SEVERAL_THREADS = "it is about tokio's runtime of several threads"
IO_FIRST = "tokio looks at its sockets between the hook and the end of the park, and the jump comes before"
LEFT_OUT = {
    "time_pause::pause_time_in_main_threads": SEVERAL_THREADS,
    "time_pause::pause_time_in_spawn_threads": SEVERAL_THREADS,
    "time_pause::paused_time_join_unix_datagram_and_sleep": IO_FIRST,
    "time_pause::paused_time_spawn_unix_datagram_and_sleep": IO_FIRST,
    "time_sleep::creating_sleep_outside_of_context": "our timers need no runtime, so nothing panics without one",
}

# What the attributes of tokio say between their brackets, and whether the test begins with paused time.
ATTRIBUTES = {None: False, "start_paused = true": True, 'flavor = "current_thread", start_paused = true': True}

# How a runtime is built that can pause each of the two modules, and what pauses it before the test begins.
RUNTIMES = {
    "tickwheel::time": (".on_thread_park(tickwheel::time::advance_when_idle)", "if is_paused { tickwheel::time::pause(); }"),
    "tokio::time": (".start_paused(is_paused)", ""),
}

MANIFEST = f"""\
[workspace]
resolver = "3"

[package]
name = "tokio-tests"
version = "0.0.0"
edition = "2021"
publish = false

[features]
default = ["full", "io-util", "sync", "time"]
full = []
io-util = []
sync = []
time = []

[dependencies]
tickwheel = {{ path = {json.dumps(ROOT.as_posix())} }}
futures = "0.3"
rand = "0.9"
tokio = {{ version = "1.40", features = ["full", "test-util"] }}
tokio-stream = {{ version = "=0.1.19", features = ["full"] }}
tokio-test = "=0.4.6"
tokio-util = {{ version = "0.7", features = ["time"] }}

# The tests also ask for features that they need only on systems without threads.
[lints.rust]
unexpected_cfgs = "allow"

[profile.dev]
debug = false
"""

# Time is paused on one thread, and some tests leave it paused, so each has a thread of its own. A sleep that does not end
# fails its test after a while, and not the whole run.
LIBRARY = """\
#![cfg(test)]

use std::{{future::Future, panic::resume_unwind, sync::mpsc, thread, time::Duration}};

const LONGEST: Duration = Duration::from_secs(30);

pub fn run<F: Future<Output: Send + 'static>>(is_paused: bool, body: impl FnOnce() -> F + Send + 'static) -> F::Output {{
    let (done, end) = mpsc::channel();
    let thread = thread::spawn(move || {{
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all(){hook}.build().unwrap();
        {pause}
        let output = runtime.block_on(body());
        drop(runtime);
        done.send(output).unwrap();
    }});
    match end.recv_timeout(LONGEST) {{
        Ok(output) => output,
        Err(mpsc::RecvTimeoutError::Disconnected) => resume_unwind(thread.join().unwrap_err()),
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("it has not ended after {{LONGEST:?}}"),
    }}
}}

{modules}
"""


def write(path: Path, text: str) -> None:
    """Writes a file if it is not the same already. What has not changed is not compiled again."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists() or path.read_text() != text:
        path.write_text(text)


def code(text: str) -> str:
    """The text without its comments."""
    return re.sub(r"//.*", "", text)


def exchange(text: str, module: str, where: object) -> str:
    """The text with `tokio::time` exchanged for `module`. It fails if it finds one that is written in another way."""
    text = re.sub(r"\btokio::time\b", module, text)
    if module != "tokio::time" and (left := re.search(r"\btokio\s*::\s*(\{[^;]*\b)?time\b", code(text))):
        sys.exit(f"{where}: there is a `tokio::time` left: {left[0]}")
    return text


# An attribute of tokio, the attributes and comments below it, and the function that it is on. Its body ends with the first
# brace that is not indented.
ASYNC_TEST = re.compile(
    r"^#\[tokio::(?P<kind>test|main)(\((?P<arguments>.*)\))?\]\n(?P<others>((#\[|//).*\n)*)"
    r"async fn (?P<name>\w+)\(\)(?P<result> -> .+)? \{\n(?P<body>(.*\n)*?)\}\n", re.MULTILINE)


def plain(module: str, found: re.Match) -> str:
    """A test or a `main` of tokio as a plain function. It has the `async fn` inside, as it was."""
    name, result = found["name"], found["result"] or ""
    if found["arguments"] not in ATTRIBUTES and f"{module}::{name}" not in LEFT_OUT:
        sys.exit(f"{module}::{name}: an attribute that is not known: {found['arguments']}")
    is_paused = str(ATTRIBUTES.get(found["arguments"], False)).lower()
    inside = f"async fn {name}(){result} {{\n{found['body']}}}\n"
    if found["kind"] == "main":
        return f"{found['others']}fn {name}(){result} {{\n{inside}crate::run({is_paused}, {name})\n}}\n"
    unwrap = ".unwrap()" if result else ""
    return (f"#[test]\n{found['others']}fn {name}() {{\n{inside}"
            f"crate::run({is_paused}, || async {{ {name}().await{unwrap} }})\n}}\n")


def rewrite(text: str, module: str) -> tuple[str, list[str]]:
    """A file of tests as a module of our package, and the names of its tests."""
    for test, reason in LEFT_OUT.items():
        if test.startswith(f"{module}::"):
            name = test.removeprefix(f"{module}::")
            text = re.sub(rf"^(async )?fn {name}\(", f"#[ignore = {json.dumps(reason)}]\n\\g<0>", text, flags=re.M)
    # tokio leaves some out because they take seconds of real time. Here they run.
    text = text.replace("#[ignore]\n", "")
    text = ASYNC_TEST.sub(lambda found: plain(module, found), text)
    if left := re.search(r"\btokio\s*::\s*(\{[^;]*\b)?(test|main)\b.*", code(text)):
        sys.exit(f"{module}: an attribute of tokio is left: {left[0]}")
    tests = re.findall(r"^#\[test\]\n(?:(?:#\[|//).*\n)*fn (\w+)\(", text, re.M)
    if not tests or len(tests) != len(re.findall(r"#\[test\]", code(text))):
        sys.exit(f"{module}: there is no test in it, or one that is not found")
    return text, [f"{module}::{name}" for name in tests]


def copy(source: Path, to: Path, module: str) -> None:
    """Copies a package, without its tests and what only they need, and with our crate."""
    tables = re.split(r"^(?=\[)", (source / "Cargo.toml").read_text(), flags=re.M)
    kept = [table for table in tables if not re.match(r"\[.*dev-dependencies|\[\[(bench|example|test)", table)]
    write(to / "Cargo.toml", "".join(kept) + f"\n[dependencies.tickwheel]\npath = {json.dumps(ROOT.as_posix())}\n")
    for file in (source / "src").rglob("*.rs"):
        write(to / file.relative_to(source), exchange(file.read_text(), module, file))


def make(module: str) -> tuple[dict[str, str], list[str]]:
    """Makes the workspace. Returns the versions of the packages, and the names of all tests."""
    hook, pause = RUNTIMES[module]
    modules = "\n".join(f"mod {file};" for files in FILES.values() for file in files)
    write(MADE / "src" / "lib.rs", LIBRARY.format(hook=hook, pause=pause, modules=modules))
    # With our Cargo.lock, so that it is our versions. cargo adds what is missing, and says where it has unpacked everything.
    write(MADE / "Cargo.toml", MANIFEST)
    shutil.copyfile(ROOT / "Cargo.lock", MADE / "Cargo.lock")
    metadata = subprocess.check_output([CARGO, "metadata", "--format-version", "1", *MANIFEST_PATH])
    packages = {package["name"]: package for package in json.loads(metadata)["packages"]}
    sources = {name: Path(packages[name]["manifest_path"]).parent for name in FILES}

    patches = "".join(f'{name} = {{ path = "{name}" }}\n' for name in COPIED)
    write(MADE / "Cargo.toml", MANIFEST + "\n[patch.crates-io]\n" + patches)
    for name in COPIED:
        copy(sources[name], MADE / name, module)
    tests = []
    for name, files in FILES.items():
        for file in files:
            path = sources[name] / "tests" / f"{file}.rs"
            text, names = rewrite(exchange(path.read_text(), module, path), file)
            write(MADE / "src" / path.name, text)
            tests += names
    if missing := LEFT_OUT.keys() - set(tests):
        sys.exit(f"to be left out, and in no file of tests: {', '.join(sorted(missing))}")
    return {name: packages[name]["version"] for name in FILES}, tests


def run() -> tuple[int, dict[str, str]]:
    """Runs the tests. Returns the exit code, and what cargo says of each."""
    environment = {"CARGO_TARGET_DIR": str(ROOT / "target"), **os.environ}
    command = [CARGO, "test", "--lib", *MANIFEST_PATH]
    print("+", *command, flush=True)
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    outcomes = {}
    for line in process.stdout:
        print(line, end="", flush=True)
        if found := re.match(r"test (\S+).* \.\.\. (ok|FAILED|ignored)", line):
            outcomes[found[1]] = found[2]
    return process.wait(), outcomes


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--with", dest="module", choices=RUNTIMES, default="tickwheel::time")
    versions, tests = make(module := parser.parse_args().module)
    code, outcomes = run()
    if not outcomes:
        sys.exit("nothing has run")
    print("with", module, "and the tests of", ", ".join(f"{name} {version}" for name, version in versions.items()))
    for file in (file for files in FILES.values() for file in files):
        mine = [outcomes.get(test, "missing") for test in tests if test.startswith(f"{file}::")]
        print(f"  {file}: {mine.count('ok')} passed, {mine.count('FAILED')} failed, {mine.count('ignored')} left out")
    for test, reason in LEFT_OUT.items():
        print(f"  left out: {test} ({outcomes.get(test, 'not on this system')}): {reason}")
    # All that is not left out must have run, so that no `cfg` turns a file into nothing.
    bad = [test for test in tests if test not in LEFT_OUT and outcomes.get(test) != "ok"]
    print(*(f"  bad: {test} ({outcomes.get(test, 'it has not run')})\n" for test in bad), sep="", end="")
    print(f"{list(outcomes.values()).count('ok')} passed, {len(bad)} failed, {len(LEFT_OUT)} skipped")
    return code or bool(bad)


if __name__ == "__main__":
    sys.exit(main())
