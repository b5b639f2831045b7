//! The nemesis of an ordeal: it starts the worker processes, and makes everything fail that can. Each fault lasts for a while, and
//! others come in the meantime.

use std::time::{Duration, Instant};

use super::super::common::{Random, until};
use super::super::databases::{Database, client};
use super::super::handlers::Place;
use super::super::process::Process;
use super::super::proxy::Way;
use super::worker::Settings;
use super::{Proxy, Server};

const WORKERS: usize = 3;

/// So long the nemesis waits for a worker that it has told to stop.
const A_WHILE: Duration = Duration::from_millis(500);

struct Member {
    settings: Settings,
    process: Process,
    /// What its worker says to the server goes through this.
    proxy: Option<Proxy>,
    is_ready: bool,
}

/// A fault that lasts.
enum Fault {
    Halted,
    Held,
    Slow,
    /// The server does not know yet that the connections have ended.
    HalfOpen,
    /// A transaction is open, in which there may be locks. Its end is the drop.
    Session {
        _client: Box<dyn Send>,
    },
}

pub(super) struct Nemesis<'a> {
    database: &'a Database<'a>,
    server: Option<&'a Server>,
    place: &'a Place,
    random: Random,
    members: Vec<Member>,
    /// The member, and when the fault is healed.
    faults: Vec<(usize, Instant, Fault)>,
    begin: Instant,
    trace: Vec<String>,
}

impl<'a> Nemesis<'a> {
    pub(super) fn new(
        database: &'a Database<'a>,
        server: Option<&'a Server>,
        place: &'a Place,
        seed: u64,
    ) -> Nemesis<'a> {
        let (members, faults, trace) = (Vec::new(), Vec::new(), Vec::new());
        let begin = Instant::now();
        let mut nemesis = Nemesis {
            database,
            server,
            place,
            random: Random(seed),
            members,
            faults,
            begin,
            trace,
        };
        if server.is_some() {
            // A server that is told to stop waits for clients that have connected and say nothing, a minute by default.
            let brief = "ALTER SYSTEM SET authentication_timeout = '1s'";
            [brief, "SELECT pg_reload_conf()"].iter().for_each(|sql| database.execute(sql));
        }
        for number in 0..WORKERS {
            let proxy = server.map(Proxy::before);
            let settings = nemesis.draw(number, proxy.as_ref());
            let process = settings.start();
            nemesis.members.push(Member { settings, process, proxy, is_ready: false });
        }
        nemesis
    }

    /// Draws what a worker process is. The first one has all kinds.
    fn draw(&mut self, number: usize, proxy: Option<&Proxy>) -> Settings {
        let mut settings = Settings::draw(&mut self.random, number == 0);
        settings.address = match proxy {
            Some(proxy) => format!(
                "{}&application_name={}",
                proxy.address_of(&self.place.address),
                name(number)
            ),
            None => self.place.address.clone(),
        };
        settings.direct.clone_from(&self.place.direct);
        settings.ledger.clone_from(&self.place.ledger);
        settings
    }

    /// What has been done, for somebody who looks for the reason of a failure.
    pub(super) fn trace(&self) -> String {
        self.trace.join("\n")
    }

    fn note(&mut self, what: &str) {
        let line = format!("{:9.3} s: {what}", self.begin.elapsed().as_secs_f64());
        println!("{line}");
        self.trace.push(line);
    }

    pub(super) fn rage(&mut self, length: Duration) {
        self.begin = Instant::now();
        while self.begin.elapsed() < length {
            self.pause();
            self.strike();
            self.tend();
        }
    }

    /// Only opens transactions that read or lock, in which no call of a worker fails.
    pub(super) fn nag(&mut self, length: Duration) {
        let begin = Instant::now();
        while self.server.is_some() && begin.elapsed() < length {
            self.pause();
            let span = Duration::from_millis(100 + self.random.below(900));
            if self.random.one_in(3) {
                self.read(span);
            } else {
                self.lock_rows(span);
            }
            self.tend();
        }
        self.heal(true);
    }

    fn pause(&mut self) {
        let next = Instant::now() + Duration::from_millis(self.random.below(250));
        while Instant::now() < next {
            self.heal(false);
            std::thread::sleep(Duration::from_millis(5)); // the pace of the faults
        }
    }

    /// Ends all faults, and waits until all workers are at work.
    pub(super) fn heal_all(&mut self) {
        self.heal(true);
        for number in 0..WORKERS {
            if let Some(proxy) = &self.members[number].proxy {
                proxy.slow_down(Duration::ZERO);
            }
        }
        self.note("all is healed");
        until("all workers are at work", || {
            self.tend();
            self.members.iter().all(|member| member.is_ready)
        });
    }

    /// Stops all workers. Returns how many faults there were.
    pub(super) fn end(mut self) -> usize {
        for member in &mut self.members {
            member.process.say("alive");
            member.process.await_line("alive yes");
            member.process.say("stop");
            member.process.await_line("stopped true");
        }
        self.trace.len()
    }

    /// Starts those again that have ended, and takes in what they say.
    fn tend(&mut self) {
        for number in 0..WORKERS {
            let member = &mut self.members[number];
            let said = member.process.said();
            member.is_ready |= said.iter().any(|line| line == "ready");
            if let Some(reason) = said.iter().find_map(|line| line.strip_prefix("alive ")) {
                assert_eq!(reason, "yes", "a worker has ended by itself");
            }
            if member.process.has_ended() {
                assert!(
                    !member.is_ready,
                    "a worker process has ended by itself: {:?}",
                    member.settings
                );
                self.renew(number);
            }
        }
    }

    fn renew(&mut self, number: usize) {
        self.faults.retain(|(of, _, fault)| *of != number || !matches!(fault, Fault::Halted));
        let proxy = self.members[number].proxy.take();
        let settings = self.draw(number, proxy.as_ref());
        let process = settings.start();
        self.members[number] = Member { settings, process, proxy, is_ready: false };
    }

    fn is_under(&self, number: usize, is_such: impl Fn(&Fault) -> bool) -> bool {
        self.faults.iter().any(|(of, _, fault)| *of == number && is_such(fault))
    }

    fn strike(&mut self) {
        let number = self.random.below(WORKERS as u64) as usize;
        let choice = self.random.below(if self.server.is_some() { 26 } else { 11 });
        let short = Duration::from_millis(20 + self.random.below(280));
        let long = Duration::from_millis(100 + self.random.below(3000));
        match choice {
            0..4 => {
                self.note(&format!("kill {number}"));
                self.members[number].process.kill();
                self.renew(number);
            }
            4..7 => self.halt(number, if self.server.is_some() { long } else { short }),
            7 => self.stop(number),
            8 => self.jump(number),
            9 => self.read(long),
            10 if self.server.is_none() => {
                self.open("BEGIN IMMEDIATE", short, "the file is locked");
            }
            10 | 11 => self.lock_rows(long),
            12 => self.open("BEGIN; LOCK TABLE tickwheel_timers", short, "the table is locked"),
            13 => self.restart(false),
            14 => self.restart(true),
            15 | 16 => self.terminate(number),
            17 | 18 => self.cut(number, long),
            19 | 20 => self.hold(number, long),
            21 | 22 => self.slow(number, long),
            23 => self.terminate_callers(),
            _ => self.tell_otherwise(),
        }
    }

    /// A worker is told to stop, and gives its timers back, if it can do so in a while.
    fn stop(&mut self, number: usize) {
        let is_halted = self.is_under(number, |fault| matches!(fault, Fault::Halted));
        let member = &mut self.members[number];
        if !is_halted && member.is_ready && member.process.try_to_say("stop") {
            let has_stopped = member.process.await_line_within("stopped true", A_WHILE);
            self.note(&format!(
                "stop {number}, {}",
                if has_stopped { "in time" } else { "and kill it" }
            ));
            self.renew(number);
        }
    }

    fn halt(&mut self, number: usize, span: Duration) {
        if self.is_under(number, |fault| matches!(fault, Fault::Halted)) {
            return;
        }
        self.note(&format!("halt {number} for {span:?}"));
        self.members[number].process.halt();
        self.faults.push((number, Instant::now() + span, Fault::Halted));
    }

    /// The wall clock of a process jumps. With SQLite it is the clock of the timers, so there it stays.
    fn jump(&mut self, number: usize) {
        let seconds = [-86_400, -60, 0, 60, 86_400][self.random.below(5) as usize];
        if self.server.is_some() && self.members[number].is_ready {
            self.note(&format!("the wall clock of {number} is {seconds} s off"));
            _ = self.members[number].process.try_to_say(&format!("clock {seconds}"));
        }
    }

    fn read(&mut self, span: Duration) {
        let sql = "BEGIN; SELECT count(*) FROM tickwheel_timers";
        self.open(sql, span, "a transaction that reads is open");
    }

    fn lock_rows(&mut self, span: Duration) {
        let sql = "BEGIN; SELECT 1 FROM tickwheel_timers WHERE state <> 'dead' ORDER BY wake LIMIT 10 FOR UPDATE SKIP LOCKED";
        self.open(sql, span, "rows are locked");
    }

    /// Opens a transaction.
    fn open(&mut self, sql: &str, span: Duration, what: &str) {
        let session: Option<Box<dyn Send>> = match self.database {
            Database::File(path) => {
                let client = rusqlite::Connection::open(path).expect("it opens");
                if client.execute_batch(sql).is_ok() { Some(Box::new(client)) } else { None }
            }
            Database::Schema { .. } => {
                let mut client = client(&self.database.url());
                let brief = format!("SET lock_timeout = '300ms'; {sql}"); // it may stand in its own way
                if client.batch_execute(&brief).is_ok() { Some(Box::new(client)) } else { None }
            }
        };
        if let Some(session) = session {
            self.note(&format!("{what} for {span:?}"));
            self.faults.push((0, Instant::now() + span, Fault::Session { _client: session }));
        }
    }

    fn restart(&mut self, is_crash: bool) {
        let Some(server) = self.server else { return };
        self.note(&format!("the server {}", if is_crash { "crashes" } else { "is restarted" }));
        if is_crash { server.crash() } else { server.restart() }
    }

    /// The server ends a half of the connections of a worker, as it does to those that an administrator does not like.
    fn terminate(&mut self, number: usize) {
        let part = self.random.below(2);
        self.note(&format!("connections of {number} are ended"));
        let sql = format!(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = '{}' AND pid % 2 = {part}",
            name(number)
        );
        self.database.execute(&sql);
    }

    fn terminate_callers(&mut self) {
        self.note("connections of callers are ended");
        self.database.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
             WHERE application_name NOT LIKE 'ordeal%' AND pid <> pg_backend_pid() AND backend_type = 'client backend' AND random() < 0.5",
        );
    }

    fn cut(&mut self, number: usize, span: Duration) {
        self.note(&format!(
            "connections of {number} are cut, and the server hears of it after {span:?}"
        ));
        let proxy = self.members[number].proxy.as_ref().expect("there is a server");
        proxy.cut_clients();
        self.faults.push((number, Instant::now() + span, Fault::HalfOpen));
    }

    fn hold(&mut self, number: usize, span: Duration) {
        let way = [Way::ToServer, Way::ToClient][self.random.below(2) as usize];
        self.note(&format!("what flows {way:?} of {number} is held for {span:?}"));
        self.members[number].proxy.as_ref().expect("there is a server").hold(way);
        self.faults.push((number, Instant::now() + span, Fault::Held));
    }

    fn slow(&mut self, number: usize, span: Duration) {
        let delay = Duration::from_millis(1 + self.random.below(40));
        self.note(&format!("what flows of {number} takes {delay:?} for {span:?}"));
        self.members[number].proxy.as_ref().expect("there is a server").slow_down(delay);
        self.faults.push((number, Instant::now() + span, Fault::Slow));
    }

    /// Workers are told of timers in another way.
    fn tell_otherwise(&mut self) {
        let way = ["at once", "debounced", "never"][self.random.below(3) as usize];
        let sql = format!("SET lock_timeout = '500ms'; SELECT tickwheel_set_notices('{way}')");
        if self.database.attempt(&sql).is_ok() {
            self.note(&format!("workers are told {way}"));
        }
    }

    fn heal(&mut self, all: bool) {
        let now = Instant::now();
        let (over, rest) = self.faults.drain(..).partition(|(_, until, _)| all || *until <= now);
        self.faults = rest;
        let over: Vec<_> = over;
        for (number, _, fault) in over {
            let member = &self.members[number];
            let proxy = member.proxy.as_ref();
            match fault {
                Fault::Halted => member.process.go_on(),
                Fault::Held => proxy.into_iter().for_each(Proxy::flow),
                Fault::Slow => proxy.into_iter().for_each(|proxy| proxy.slow_down(Duration::ZERO)),
                Fault::HalfOpen => proxy.into_iter().for_each(Proxy::tell_server),
                Fault::Session { _client } => {}
            }
        }
    }
}

fn name(number: usize) -> String {
    format!("ordeal{number}")
}
