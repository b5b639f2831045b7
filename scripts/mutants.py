#!/usr/bin/env python3
"""Runs the mutants of `cargo mutants`, and compares who survives with `scripts/survivors.txt`.

    scripts/mutants.py                     all of them, an hour on two cores
    scripts/mutants.py src/wheel src/job   those of files that begin so
    scripts/mutants.py --listed            those that are listed: does a new test catch some of them?
    scripts/mutants.py --write             writes the new ones to survivors.txt, for a reason to be set above them

`cargo mutants` builds each of its five thousand mutants anew, which takes hours. Here all of them are in one program
(`scripts/mutants/src/main.rs` says how), and the environment says which one is on. First each test runs
alone, to see which mutants it comes by; then each mutant meets the tests that do, quick ones first. Who is left
meets the tests of memory, and the models with one preemption. Those that no switch can reach, as they are in
constants, are built one by one.

It needs `cargo install cargo-mutants`, works on a copy of the tree under target/, and changes nothing here.
"""

import collections
import concurrent.futures
import itertools
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SURVIVORS = ROOT / "scripts" / "survivors.txt"
SOURCES = "src/", "durable/src/"
HERE = ROOT / "target" / "mutants"
TREE, BUILD, SEEN, LIST, LEFT_OUT = (HERE / name for name in ("tree", "build", "seen", "list.json", "left_out.txt"))

# Tests of the text of the sources, those in which the system stands still for seconds, and one that bounds its own memory.
IDLE = ("faults::", "bounds::api_table::", "bounds::tree::", "alone::abuse::", "executors::abuse_of_executors::",
        "alone::memory::s20_")
# They take long, so only those meet them whom no other catches.
LATER = "alone::memory::", "alone::overload::", "alone::storms::", "cancel::abuse_of_closures::"
# For those who are built one by one.
CORE = ["soak", "cancel", "future", "layers"]
# This module is only there without features.
PLAIN = "src/observe/trace.rs", "off::"
# Tests that are quicker than this share a process.
QUICK = 0.15
# Most mutants that hang do not compute, so there may be more of them than cores.
AT_ONCE = 3 * len(os.sched_getaffinity(0))

ENVIRONMENT = dict(os.environ, CARGO_TARGET_DIR=str(BUILD), RUSTFLAGS="--cap-lints allow",
                   CARGO_PROFILE_DEV_OPT_LEVEL="1", CARGO_MANIFEST_DIR=str(TREE), RUST_BACKTRACE="0",
                   TICKWHEEL_IMPATIENT="1", LOOM_MAX_PREEMPTIONS="1")
LOOM = dict(ENVIRONMENT, CARGO_TARGET_DIR=str(HERE / "loom"), RUSTFLAGS="--cfg loom --cap-lints allow")
TESTS = ["cargo", "test", "--all-features", "--lib"]
MODELS = ["cargo", "test", "--release", "--lib"]
# All that it is built as.
CHECKS = [
    (["cargo", "check", "--workspace", "--lib"], ENVIRONMENT),
    (["cargo", "check", "--workspace", "--lib", "--all-features"], ENVIRONMENT),
    (["cargo", "check", "--workspace", "--lib", "--all-features", "--profile", "test"], ENVIRONMENT),
    (["cargo", "check", "--lib", "--profile", "test"], LOOM),
]


def copy():
    TREE.mkdir(parents=True, exist_ok=True)
    for name in ["Cargo.toml", "Cargo.lock", "README.md", "benches", "demos", "durable", "ecosystem", "examples",
                 "tests", "src"]:
        source = ROOT / name
        if source.is_dir():
            shutil.rmtree(TREE / name, ignore_errors=True)
            shutil.copytree(source, TREE / name, ignore=shutil.ignore_patterns("target"))
        else:
            shutil.copy2(source, TREE / name)


def names(mutants):
    """`src/a.rs: replace x with y in f`: without lines, which move; numbered, if there is more than one."""
    plain = [re.sub(r":\d+:\d+: ", ": ", mutant["name"]) for mutant in mutants]
    counts, seen = collections.Counter(plain), collections.Counter()
    for name in plain:
        seen[name] += 1
        yield f"{name} ({seen[name]} of {counts[name]})" if counts[name] > 1 else name


def is_plain(mutant):
    file, module = PLAIN
    return mutant["file"] == file and (mutant["function"] or {}).get("function_name", "").startswith(module)


def list_mutants():
    """Has `cargo mutants` list them, of a copy: it sees no module in a macro, so the macro's lines are emptied there.
    The models are tests, and are only built for loom."""
    copy()
    for file in (TREE / "src").rglob("*.rs"):
        text = file.read_text()
        file.write_text(re.sub(r"^outside_models! \{\n((?:    .*\n)+)\}\n", r"\n\1\n", text, flags=re.M))
    command = ["cargo", "mutants", "--list", "--json", "--workspace", "--exclude", "**/tests/models/**"]
    listed = json.loads(subprocess.run(command, cwd=TREE, check=True, capture_output=True, text=True).stdout)
    mutants = [mutant for mutant in listed if mutant["file"].startswith(SOURCES)]
    LIST.write_text(json.dumps(mutants))
    return mutants


# ----- one program with all of them ----------------------------------------------------------------


def at(rows, line, column):
    """How far into the text that is."""
    return sum(len(row) + 1 for row in rows[:line - 1]) + column - 1


def blamed(message):
    """Whose error it is: those of the lines it points to, or else of the innermost place about them. If that is nobody's,
    those of the other lines that it names, such as the one where a value was moved."""
    spans = sorted(message["spans"], key=lambda span: not span["is_primary"])
    for _, group in itertools.groupby(spans, key=lambda span: span["is_primary"]):
        lines, places = blamed_by(group, message)
        if lines or places:
            return lines, places
    return set(), set()


def blamed_by(spans, message):
    lines, places = set(), set()
    for span in spans:
        file = TREE / span["file_name"]
        if not file.exists():
            continue
        text = file.read_text()
        rows = text.split("\n")
        if message["code"] and message["code"]["code"] == "E0004":
            # A match whose arms all have guards now: all of its arms are left out.
            start = end = text.index("{", at(rows, span["line_end"], span["column_end"]))
            depth = 1
            while depth:
                end += 1
                depth += {"{": 1, "}": -1}.get(text[end], 0)
            places |= set(map(int, re.findall(r" if !crate::__mutants::on\((\d+)\)", text[start:end])))
            continue
        on_lines = set()
        if span["line_end"] - span["line_start"] < 3:
            on_lines = {int(number) for row in rows[span["line_start"] - 1:span["line_end"]]
                        for number in re.findall(r"/\*M(\d+)\*/", row)}
        lines |= on_lines
        if not on_lines:
            error = at(rows, span["line_start"], span["column_start"])
            open_places, innermost = [], None
            for mark in re.finditer(r"/\*([BE])\*/", text):
                if mark[1] == "B":
                    open_places.append(mark.start())
                    continue
                start = open_places.pop()
                if start <= error < mark.end():
                    innermost = text[start:mark.end()]
                    break
            if innermost:
                places |= set(map(int, re.findall(r"__mutants::on\((\d+)\)", innermost)))
    return lines, places


def write_program(mutants):
    """Writes the sources, and leaves out those that do not compile. Those that no switch can reach are returned."""
    builder = ["cargo", "build", "--quiet", "--release", "--manifest-path", str(ROOT / "scripts/mutants/Cargo.toml"),
               "--target-dir", str(HERE / "writer")]
    subprocess.run(builder, check=True)
    # A second type hidden behind `impl Trait` does not compile beside the first, though it may alone.
    alone = {number for number, mutant in enumerate(mutants, 1)
             if mutant["genre"] == "FnValue" and "impl " in mutant["function"]["return_type"]
             or is_plain(mutant)}
    left_out, apart = set(alone), set(alone)
    while True:
        copy()
        LEFT_OUT.write_text(" ".join(map(str, sorted(left_out))))
        writer = [str(HERE / "writer/release/tickwheel-mutants"), str(LIST), str(ROOT), str(TREE), str(LEFT_OUT)]
        unreached = set(map(int, subprocess.run(writer, check=True, capture_output=True, text=True).stdout.split()))
        shutil.copy2(ROOT / "scripts/mutants/switch.rs", TREE / "src/__mutants.rs")
        library = (TREE / "src/lib.rs").read_text().replace("#![deny(unsafe_code)]", "#![allow(unsafe_code)]")
        (TREE / "src/lib.rs").write_text(library + "\n#[doc(hidden)]\npub mod __mutants;\n")
        # A process has one switch, in the crate below the other.
        with (TREE / "durable/src/lib.rs").open("a") as above:
            above.write("\n#[doc(hidden)]\npub use tickwheel::__mutants;\n")

        lines, places, others = set(), set(), []
        for command, environment in CHECKS:
            check = subprocess.run([*command, "--message-format=json"], cwd=TREE, env=environment,
                                   capture_output=True, text=True)
            for message in map(json.loads, check.stdout.splitlines()):
                if message.get("reason") == "compiler-message" and message["message"]["level"] == "error":
                    of_lines, of_places = blamed(message["message"])
                    lines |= of_lines
                    places |= of_places
                    if not of_lines and not of_places:
                        others.append(message["message"]["rendered"])
            if check.returncode:
                break
        if lines:
            left_out |= lines
        elif places:
            # The error may be the rewriting's, so they are tried alone.
            left_out |= places
            apart |= places
        elif check.returncode:
            sys.exit("the mutated tree does not compile:\n" + "\n".join(others)[-3000:] + check.stderr[-2000:])
        else:
            # What is not a body may fail for want of a type, which it would know where it stood.
            apart |= {number for number in left_out if mutants[number - 1]["genre"] != "FnValue"}
            return sorted(apart | unreached), left_out | unreached
        print(f"  {len(left_out)} left out so far", flush=True)


# ----- tests ---------------------------------------------------------------------------------------


def build(command, environment=ENVIRONMENT):
    """The test programs, by name; None if it does not compile."""
    result = subprocess.run([*command, "--no-run", "--message-format=json"], cwd=TREE, env=environment,
                            capture_output=True, text=True)
    messages = [json.loads(line) for line in result.stdout.splitlines() if line.startswith("{")]
    programs = {message["target"]["name"]: message["executable"] for message in messages
                if message.get("executable") and message["profile"]["test"]}
    return programs if result.returncode == 0 else None


def limits():
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (16 << 30, 16 << 30))
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 28, 1 << 28))


def run(program, tests, timeout, **environment):
    """What it returned, or None if it did not in time; and which tests failed."""
    process = subprocess.Popen([program, *(["--exact"] if tests else []), *tests], cwd=TREE, stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, start_new_session=True, preexec_fn=limits,
                               env=dict(ENVIRONMENT, **environment))
    try:
        output = process.communicate(timeout=timeout)[0].decode(errors="replace")
        return process.returncode, re.findall(r"^test (\S+)(?: - should panic)? \.\.\. FAILED$", output, re.M)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return None, []


def watch(programs, takes):
    """Which mutants each test comes by that it takes, and how long that test takes."""
    SEEN.mkdir(parents=True, exist_ok=True)

    def one(program, test):
        file = SEEN / f"{program}-{test.replace('::', '-')}"
        file.unlink(missing_ok=True)
        start = time.time()
        code, _ = run(programs[program], [test, "--test-threads=1"], 300, MUTANTS_SEEN=str(file))
        if code != 0:
            sys.exit(f"{test} of {program} fails without a mutant")
        seen = set(map(int, file.read_text().split())) if file.exists() else set()
        return {"program": program, "test": test, "time": time.time() - start, "seen": seen}

    tests = []
    for program in programs:
        listed = subprocess.run([programs[program], "--list"], cwd=TREE, capture_output=True, text=True).stdout
        tests += [(program, line.removesuffix(": test")) for line in listed.splitlines()
                  if line.endswith(": test") and takes(f"{program}::{line}")]
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        return list(pool.map(lambda test: one(*test), tests))


def meets(number, tests, programs):
    """Who catches it, or None. What fails has to fail twice; what hangs has to hang long."""
    groups = collections.defaultdict(list)
    for test in tests:
        groups[test["program"], None if test["time"] < QUICK else test["test"]].append(test)
    for (program, _), group in sorted(groups.items(), key=lambda item: sum(test["time"] for test in item[1])):
        timeout = 4 + 5 * sum(test["time"] for test in group)
        selected = [test["test"] for test in group]
        code, failed = run(programs[program], selected, timeout, MUTANT=str(number))
        if code is None:
            return f"{program}, which hangs"
        if code != 0:
            again, _ = run(programs[program], failed or selected, timeout, MUTANT=str(number))
            if again != 0:
                return f"{program}: {', '.join(failed[:3]) or code}"
    return None


def all_meet(numbers, tests, programs):
    """Those of them that no test catches."""
    print(f"{len(numbers)} meet {len(tests)} tests:", flush=True)
    by_number = collections.defaultdict(list)
    for test in tests:
        for number in test["seen"]:
            by_number[number].append(test)
    left, start = [], time.time()
    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        found = pool.map(lambda number: meets(number, by_number[number], programs), numbers)
        for done, (number, caught) in enumerate(zip(numbers, found), 1):
            if not caught:
                left.append(number)
            if done % 250 == 0 or done == len(numbers):
                print(f"  {done} of {len(numbers)}, {len(left)} left, {time.time() - start:.0f} s", flush=True)
    return left


def one_by_one(numbers, mutants):
    """Builds each of them, and runs the tests of the core. Those that survive, and how many compile."""
    left, compiled = [], 0
    tests = TESTS + [word for name in CORE for word in ("--test", name)]
    print(f"{len(numbers)} are built one by one:", flush=True)
    for done, number in enumerate(numbers, 1):
        copy()
        mutant = mutants[number - 1]
        subprocess.run(["patch", "--quiet", mutant["file"]], cwd=TREE, input=mutant["diff"], text=True, check=True)
        programs = build([word for word in tests if word != "--all-features" or not is_plain(mutant)])
        if programs:
            compiled += 1
            if not any(run(program, [], 60)[0] != 0 for program in programs.values()):
                left.append(number)
        if done % 10 == 0 or done == len(numbers):
            print(f"  {done} of {len(numbers)}, {len(left)} left", flush=True)
    return left, compiled


# ----- survivors -----------------------------------------------------------------------------------


def listed():
    """The names in `survivors.txt`; each must stand below a reason."""
    found, reason = [], None
    for line in SURVIVORS.read_text().splitlines():
        if line.startswith("#"):
            reason = line.strip("# ") or None
        elif not line.strip():
            reason = None
        elif reason is None:
            sys.exit(f"survivors.txt gives no reason for {line}")
        else:
            found.append(line)
    return found


def main():
    prefixes = tuple(argument for argument in sys.argv[1:] if not argument.startswith("-"))
    if subprocess.run(["cargo", "mutants", "--version"], capture_output=True).returncode:
        sys.exit("cargo-mutants is needed for the list of mutants: cargo install cargo-mutants")
    HERE.mkdir(parents=True, exist_ok=True)
    start = time.time()
    mutants = list_mutants()
    name = dict(enumerate(names(mutants), 1))
    wanted = {number for number in name if mutants[number - 1]["file"].startswith(prefixes or SOURCES)}
    if "--listed" in sys.argv:
        known = set(listed())
        wanted = {number for number in wanted if name[number] in known}
    print(f"{len(mutants)} mutants; which of them compile:", flush=True)
    apart, left_out = write_program(mutants)

    print("which tests come by them", flush=True)
    above = [] if all(prefix.startswith("src/") for prefix in prefixes or SOURCES) else ["-p", "tickwheel-durable"]
    programs = build([*TESTS, "--tests", "-p", "tickwheel", "-p", "tickwheel-ecosystem", *above])
    models = build(MODELS, LOOM)
    if programs is None or models is None:
        sys.exit("the tests do not compile in the mutated tree")
    switched = sorted(wanted - left_out)
    left = all_meet(switched, watch(programs, lambda test: not test.startswith(IDLE + LATER)), programs)
    (HERE / "survivors.txt").write_text("\n".join(name[number] for number in sorted(left)) + "\n")  # so far
    left = all_meet(left, watch(programs, lambda test: test.startswith(LATER)), programs)
    left = all_meet(left, watch(models, lambda test: "::models::" in test), models)
    more, compiled = one_by_one([number for number in apart if number in wanted], mutants)
    survivors = [name[number] for number in sorted(left + more)]

    (HERE / "survivors.txt").write_text("\n".join(survivors) + "\n")
    known = [line for line in listed() if line.startswith(prefixes or SOURCES)]
    new = [line for line in survivors if line not in known]
    gone = [line for line in known if line not in survivors]
    print(f"{len(switched) + compiled} mutants that compile, {len(survivors)} survive, {time.time() - start:.0f} s")
    for line in gone:
        print(f"caught now, though listed: {line}")
    for line in new:
        print(f"survives: {line}")
    if "--write" in sys.argv and new:
        SURVIVORS.write_text("\n".join(["# ", *new, ""]) + "\n" + SURVIVORS.read_text())
    sys.exit(f"{len(new)} survive without a reason in scripts/survivors.txt" if new else 0)


if __name__ == "__main__":
    main()
